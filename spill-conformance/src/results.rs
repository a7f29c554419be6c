//! Results as data: one small file per suite and subject, and the table made of a directory of them.
//!
//! A file is text, with a tab between fields: a line with suite and name, then one line per check with
//! verdict, name, and reason if there is one. Nothing in it depends on time or machine.

use std::{
    collections::BTreeMap,
    env, fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::runner::{CheckResult, CheckVerdict, Subject};

/// The environment variable that names the directory to write results to. Make it an absolute path: tests
/// run in the directory of their package.
pub const REPORT_VARIABLE: &str = "SPILL_CONFORMANCE_REPORT";

const ENDING: &str = "results";
const RUNTIMES: [&str; 2] = ["/current_thread", "/multi_thread"];

/// Writes results to where the environment asks for them; does nothing when it does not.
pub(crate) fn write_if_asked(results: &[(Arc<Subject>, CheckResult)]) -> io::Result<()> {
    match env::var_os(REPORT_VARIABLE) {
        Some(directory) if !directory.is_empty() => write(&PathBuf::from(directory), results),
        _ => Ok(()),
    }
}

/// Writes one file per subject.
fn write(directory: &Path, results: &[(Arc<Subject>, CheckResult)]) -> io::Result<()> {
    let mut texts: BTreeMap<&Subject, Vec<String>> = BTreeMap::new();
    for (subject, result) in results {
        texts.entry(subject).or_default().push(line(result));
    }
    fs::create_dir_all(directory).map_err(|error| at(directory, "making it", &error))?;
    for (subject, mut lines) in texts {
        lines.sort_unstable();
        let text = format!("{}\t{}\n{}", subject.suite, plain(&subject.name), lines.concat());
        let path = directory.join(format!("{}-{}.{ENDING}", subject.suite, file_name(&subject.name)));
        fs::write(&path, text).map_err(|error| at(&path, "writing results", &error))?;
    }
    Ok(())
}

fn line(result: &CheckResult) -> String {
    let (verdict, reason) = match &result.verdict {
        CheckVerdict::Passed => ("passed", ""),
        CheckVerdict::Failed(message) => ("failed", message.as_str()),
        CheckVerdict::Waived(reason) => ("waived", reason.as_str()),
        CheckVerdict::NotApplicable(reason) => ("not-applicable", reason.as_str()),
    };
    format!("{verdict}\t{}\t{}\n", plain(&result.name), plain(reason))
}

/// Without what separates fields and lines.
fn plain(text: &str) -> String {
    text.replace(['\t', '\n', '\r'], " ")
}

fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

fn at(path: &Path, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {what}: {error}", path.display()))
}

/// How one case went, on all runtimes; the later, the worse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Went {
    NotApplicable(String),
    Passed,
    Waived(String),
    Failed(String),
}

/// All cases of one subject by name.
#[derive(Debug)]
struct Row {
    suite: String,
    name: String,
    cases: BTreeMap<String, Went>,
}

/// The results in a directory as a page of Markdown: what [`REPORT_VARIABLE`] made suites write there. Equal
/// results give equal text.
///
/// A case that runs on two runtimes counts once: as failed if it failed on one of them.
///
/// # Errors
/// When the directory can't be read, has no results, or has a file of that kind that is none.
///
/// ```
/// let directory = std::path::Path::new("/nowhere");
/// assert!(spill_conformance::results_table(directory).unwrap_err().to_string().contains("/nowhere"));
/// ```
pub fn results_table(directory: &Path) -> io::Result<String> {
    let mut rows = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| at(directory, "reading results", &error))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) {
            let text = fs::read_to_string(&path).map_err(|error| at(&path, "reading results", &error))?;
            let row = parse(&text);
            rows.push(row.ok_or_else(|| {
                at(&path, "reading results", &io::Error::other("it is no file of results; remove it"))
            })?);
        }
    }
    if rows.is_empty() {
        let message = format!("there are none; run suites with {REPORT_VARIABLE} set to it");
        return Err(at(directory, "reading results", &io::Error::new(io::ErrorKind::NotFound, message)));
    }
    rows.sort_unstable_by(|one, other| (&one.suite, &one.name).cmp(&(&other.suite, &other.name)));
    Ok(Page(&rows).to_string())
}

fn parse(text: &str) -> Option<Row> {
    let mut lines = text.lines();
    let (suite, name) = lines.next()?.split_once('\t')?;
    let mut cases: BTreeMap<String, Went> = BTreeMap::new();
    for line in lines {
        let mut fields = line.split('\t');
        let (verdict, check, reason) = (fields.next()?, fields.next()?, fields.next()?.to_owned());
        let went = match verdict {
            "passed" => Went::Passed,
            "failed" => Went::Failed(reason),
            "waived" => Went::Waived(reason),
            "not-applicable" => Went::NotApplicable(reason),
            _ => return None,
        };
        let case = RUNTIMES.iter().find_map(|runtime| check.strip_suffix(runtime)).unwrap_or(check);
        let before = cases.entry(case.to_owned()).or_insert_with(|| went.clone());
        if *before < went {
            *before = went;
        }
    }
    Some(Row { suite: suite.to_owned(), name: name.to_owned(), cases })
}

impl Row {
    fn count(&self, counts: impl Fn(&Went) -> bool) -> usize {
        self.cases.values().filter(|went| counts(went)).count()
    }
}

/// The page about these rows.
struct Page<'a>(&'a [Row]);

impl Page<'_> {
    fn table(&self, f: &mut fmt::Formatter<'_>, of_stores: bool) -> fmt::Result {
        let rows = || self.0.iter().filter(|row| (row.suite == "store") == of_stores);
        if rows().next().is_none() {
            return Ok(());
        }
        let first = if of_stores { "store" } else { "part" };
        writeln!(f, "| {first} | cases | passed | failed | waived | not applicable |")?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|")?;
        for row in rows() {
            let kind = if of_stores { String::new() } else { format!("{} ", row.suite) };
            writeln!(
                f,
                "| {kind}{} | {} | {} | {} | {} | {} |",
                row.name,
                row.cases.len(),
                row.count(|went| *went == Went::Passed),
                row.count(|went| matches!(went, Went::Failed(_))),
                row.count(|went| matches!(went, Went::Waived(_))),
                row.count(|went| matches!(went, Went::NotApplicable(_))),
            )?;
        }
        writeln!(f)
    }

    /// The cases that went a certain way: those of one subject that have one reason in one line.
    fn list(
        &self,
        f: &mut fmt::Formatter<'_>,
        title: &str,
        reason: impl Fn(&Went) -> Option<&str>,
    ) -> fmt::Result {
        let mut entries: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for row in self.0 {
            for (case, went) in &row.cases {
                if let Some(reason) = reason(went) {
                    entries.entry((&row.name, reason)).or_default().push(case);
                }
            }
        }
        if entries.is_empty() {
            return Ok(());
        }
        writeln!(f, "## {title}\n")?;
        for ((name, reason), cases) in entries {
            let cases: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
            writeln!(f, "- **{name}**: {reason}: {}", cases.join(", "))?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Conformance\n")?;
        writeln!(
            f,
            "How the stores and other parts fared in the suites of `spill-conformance`. What each group of cases\n\
             proves, and what no case proves, is on that crate's page.\n"
        )?;
        self.table(f, true)?;
        self.table(f, false)?;
        self.list(f, "Failed", |went| match went {
            Went::Failed(message) => Some(message),
            _ => None,
        })?;
        self.list(f, "Waived", |went| match went {
            Went::Waived(reason) => Some(reason),
            _ => None,
        })?;
        self.list(f, "Not applicable", |went| match went {
            Went::NotApplicable(reason) => Some(reason),
            _ => None,
        })?;
        writeln!(
            f,
            "## How this page is made\n\n\
             `.ci/conformance-table` runs the suites with `{REPORT_VARIABLE}` set to an empty directory, and the\n\
             example `table` of `spill-conformance` over what they write there.\n\n\
             Each case of a store runs on a current-thread and on a multi-thread runtime, and counts once: as failed if\n\
             it fails on one. *Waived* is what the author declares not to hold, *not applicable* what there is nothing to\n\
             check of, or what the harness does not unlock."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, verdict: CheckVerdict) -> CheckResult {
        CheckResult { name: name.into(), verdict }
    }

    fn results() -> Vec<(Arc<Subject>, CheckResult)> {
        let files = Arc::new(Subject { suite: "store", name: "files".into() });
        let codec = Arc::new(Subject { suite: "codec", name: "a/b".into() });
        let waived = || CheckVerdict::Waived("they\tare\nnot kept".into());
        vec![
            (Arc::clone(&files), result("basics/one/current_thread", CheckVerdict::Passed)),
            (Arc::clone(&files), result("basics/one/multi_thread", CheckVerdict::Failed("wrong".into()))),
            (Arc::clone(&files), result("basics/two/current_thread", CheckVerdict::Passed)),
            (Arc::clone(&files), result("basics/two/multi_thread", CheckVerdict::Passed)),
            (Arc::clone(&files), result("ids/three/multi_thread", waived())),
            (Arc::clone(&files), result("ids/three/current_thread", waived())),
            (files, result("sweep/four/multi_thread", CheckVerdict::NotApplicable("needs it".into()))),
            (codec, result("codec/a/b/comes_back", CheckVerdict::Passed)),
        ]
    }

    #[test]
    fn a_directory_of_results_becomes_a_table() {
        let directory = env::temp_dir().join(format!("spill-results-{}", std::process::id()));
        write(&directory, &results()).unwrap();
        let mut backwards = results();
        backwards.reverse();
        let page = results_table(&directory).unwrap();
        write(&directory, &backwards).unwrap();
        assert_eq!(results_table(&directory).unwrap(), page, "the order of checks does not matter");
        for line in [
            "| files | 4 | 1 | 1 | 1 | 1 |",
            "| codec a/b | 1 | 1 | 0 | 0 | 0 |",
            "- **files**: wrong: `basics/one`",
            "- **files**: they are not kept: `ids/three`",
            "- **files**: needs it: `sweep/four`",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        fs::write(directory.join("other.results"), "nonsense").unwrap();
        let error = results_table(&directory).unwrap_err().to_string();
        assert!(error.contains("other.results"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
        assert!(results_table(&directory).unwrap_err().to_string().contains(REPORT_VARIABLE));
        fs::remove_dir(&directory).unwrap();
    }
}
