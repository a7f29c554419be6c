//! The real files: finds them, and reads one at a time, changed a little where a copy is asked for.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The name of an entry: a file below the directory, and which copy of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    path: Arc<Path>,
    copy: u32,
}

/// The files of one directory.
#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
    /// Relative to the root, in order.
    paths: Vec<Arc<Path>>,
}

impl Files {
    /// Finds every regular file below a directory. Links are not followed.
    pub(crate) fn find(root: PathBuf) -> Result<Self, String> {
        let wrong = |path: &Path, error: io::Error| {
            format!("can't list {}: {error}; name a directory of readable files", path.display())
        };
        let (mut paths, mut directories) = (Vec::new(), vec![root.clone()]);
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).map_err(|error| wrong(&directory, error))? {
                let entry = entry.map_err(|error| wrong(&directory, error))?;
                let kind = entry.file_type().map_err(|error| wrong(&directory, error))?;
                if kind.is_dir() {
                    directories.push(entry.path());
                } else if kind.is_file() {
                    let path = entry.path();
                    paths.push(path.strip_prefix(&root).unwrap_or(&path).into());
                }
            }
        }
        if paths.is_empty() {
            return Err(format!("there is no file in {}: name a directory that has some", root.display()));
        }
        paths.sort();
        Ok(Self { root, paths })
    }

    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn key(&self, file: usize, copy: u32) -> Key {
        Key { path: self.paths[file].clone(), copy }
    }

    /// The bytes of a file, changed by `mark`: different ones for every mark, those of the file for 0.
    pub(crate) fn read(&self, file: usize, mark: u64) -> Result<Vec<u8>, String> {
        let path = self.root.join(&self.paths[file]);
        let mut bytes = fs::read(&path).map_err(|error| {
            format!("can't read {}: {error}; name a directory whose files stay as they are", path.display())
        })?;
        if mark != 0 {
            change(&mut bytes, mark);
        }
        Ok(bytes)
    }
}

/// Changes the eight bytes in the middle; what is shorter becomes that long.
fn change(bytes: &mut Vec<u8>, mark: u64) {
    let mark = mark.to_le_bytes();
    if bytes.len() < mark.len() {
        bytes.resize(mark.len(), 0);
    }
    let at = (bytes.len() - mark.len()) / 2;
    for (byte, mark) in bytes[at..].iter_mut().zip(mark) {
        *byte ^= mark;
    }
}

/// Where cargo keeps the sources of the crates it has built.
pub(crate) fn registry_sources() -> Result<PathBuf, String> {
    let home = std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let sources = home.ok_or("there is no home directory: name a directory of files")?.join("registry/src");
    match sources.is_dir() {
        true => Ok(sources),
        false => Err(format!("{} is not there: name a directory of files", sources.display())),
    }
}
