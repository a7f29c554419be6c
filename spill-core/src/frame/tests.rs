use super::*;
use crate::CompressError;

/// Counts equal bytes: enough of a compressor to test what stands above it.
#[derive(Debug)]
struct RunLength;

impl Compressor for RunLength {
    fn tag(&self) -> Tag {
        Tag(200)
    }

    fn name(&self) -> &'static str {
        "run-length"
    }

    fn bound(&self, raw: usize) -> usize {
        2 * raw
    }

    fn compress(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        let mut at = 0;
        for run in raw.chunk_by(|a, b| a == b).flat_map(|run| run.chunks(255)) {
            out[at] = u8::try_from(run.len()).unwrap();
            out[at + 1] = run[0];
            at += 2;
        }
        Ok(at)
    }

    fn decompress(&self, packed: &[u8], out: &mut [u8]) -> Result<(), CompressError> {
        let raw: Vec<u8> = packed.chunks_exact(2).flat_map(|run| vec![run[1]; run[0].into()]).collect();
        if raw.len() != out.len() {
            return Err(CompressError::new("run-length", "length differs"));
        }
        out.copy_from_slice(&raw);
        Ok(())
    }
}

const OWNER: u64 = 0x1122_3344_5566_7788;
const ENTRY: EntryId = EntryId::new(42);

fn compressors() -> Vec<Arc<dyn Compressor>> {
    vec![Arc::new(RunLength)]
}

fn compression() -> Compression {
    Compression { compressor: Some(Arc::new(RunLength)) }
}

fn seal(raw: &[u8]) -> Vec<u8> {
    let mut out = vec![0; compression().bound(raw.len())];
    let (tag, payload) = match compression().compress(raw, &mut out) {
        Some((tag, len)) => (tag, out[..len].to_vec()),
        None => (Tag::NONE, raw.to_vec()),
    };
    let header = Header {
        owner: OWNER,
        entry: ENTRY,
        tag,
        encoded: raw.len() as u64,
        payload: payload.len() as u64,
        crc: crc32c::crc32c(&payload),
    };
    let mut frame = header.to_bytes().to_vec();
    frame.extend_from_slice(&payload);
    frame.resize(usize::try_from(frame_len(payload.len() as u64)).unwrap(), 0);
    frame
}

fn open_as(frame: &[u8], entry: EntryId, encoded: usize) -> Result<Bytes, FrameError> {
    let expected = Expected { owner: OWNER, entry, encoded: encoded as u64 };
    open(&Bytes::copy_from_slice(frame), &expected, &compressors())
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..len).map(step).collect()
}

#[test]
fn c01_a_frame_says_how_it_was_compressed() {
    let packed = seal(&[7; 1000]);
    let plain = seal(&noise(1000));
    assert_eq!((packed[5], plain[5]), (200, 0));
    assert_eq!(open_as(&packed, ENTRY, 1000).unwrap(), vec![7; 1000]);
    assert_eq!(open_as(&plain, ENTRY, 1000).unwrap(), noise(1000));
    assert_eq!(
        open(&packed.into(), &Expected { owner: OWNER, entry: ENTRY, encoded: 1000 }, &[]),
        Err(FrameError::Compressor(Tag(200))),
        "a compressor that is gone is named"
    );
}

#[test]
fn c02_what_does_not_shrink_is_stored_as_it_is() {
    let mut out = vec![0; 4 << 20];
    let shrinks = vec![1; 1 << 20];
    assert!(compression().compress(&shrinks, &mut out).is_some());
    assert!(compression().compress(&noise(1 << 20), &mut out).is_none());
    assert!(compression().compress(&shrinks[..TOO_SMALL - 1], &mut out).is_none(), "too small");

    // The head shrinks and the rest does not: samples are spaced over the whole value.
    let mut mixed = vec![0; 64 << 10];
    mixed.extend(noise(960 << 10));
    assert!(!sample_is_worth_it(&RunLength, &mixed, &mut out));

    let twice: Vec<_> = (0..2).map(|_| compression().compress(&shrinks, &mut out)).collect();
    assert_eq!(twice[0], twice[1], "deterministic");
}

#[test]
fn c03_any_damage_is_an_error() {
    for raw in [vec![7u8; 1000], noise(130), vec![], vec![1]] {
        let frame = seal(&raw);
        assert_eq!(open_as(&frame, ENTRY, raw.len()).unwrap(), raw);
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(open_as(&damaged, ENTRY, raw.len()).is_err(), "bit {bit} of {}", frame.len());
        }
        for len in 0..frame.len() {
            assert!(open_as(&frame[..len], ENTRY, raw.len()).is_err(), "cut to {len}");
        }
        let longer = [&frame[..], &[0]].concat();
        assert!(
            matches!(open_as(&longer, ENTRY, raw.len()), Err(FrameError::Length { .. })),
            "one byte appended"
        );
    }
}

#[test]
fn c03_a_frame_is_nobody_elses() {
    let frame = seal(b"mine");
    assert_eq!(open_as(&frame, EntryId::new(43), 4), Err(FrameError::Entry));
    let other_owner = Expected { owner: OWNER + 1, entry: ENTRY, encoded: 4 };
    assert_eq!(open(&frame.into(), &other_owner, &[]), Err(FrameError::Owner));
}

#[test]
fn c03_a_claimed_length_allocates_nothing_before_it_is_verified() {
    let mut header =
        Header { owner: OWNER, entry: ENTRY, tag: Tag(200), encoded: u64::MAX, payload: 0, crc: 0 };
    for payload in [u64::MAX, u64::MAX - 63, 1 << 60, 64] {
        header.payload = payload;
        let frame = header.to_bytes();
        assert!(matches!(open_as(&frame, ENTRY, 1), Err(FrameError::Length { .. })), "{payload}");
    }
    header.payload = 0;
    assert!(matches!(open_as(&header.to_bytes(), ENTRY, 1), Err(FrameError::Length { .. })), "encoded");
}

#[test]
fn c04_every_size_round_trips() {
    let sizes =
        [0, 1, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, SAMPLED_FROM - 1, SAMPLED_FROM, SAMPLED_FROM + 1];
    for size in sizes {
        for raw in [vec![0u8; size], noise(size)] {
            let frame = seal(&raw);
            assert_eq!(frame.len() % ALIGN, 0);
            assert_eq!(open_as(&frame, ENTRY, raw.len()).unwrap(), raw, "{size}");
            // A value that looks like a frame is a value.
            assert_eq!(open_as(&seal(&frame), ENTRY, frame.len()).unwrap(), frame, "{size}");
        }
    }
}

/// Changes here break everybody's files: the layout is `docs/format.md`.
#[test]
fn the_layout_is_the_documented_one() {
    let header = Header {
        owner: 0x0102_0304_0506_0708,
        entry: EntryId::new(9),
        tag: Tag::LZ4,
        encoded: 10,
        payload: 11,
        crc: 12,
    };
    let bytes = header.to_bytes();
    assert_eq!(bytes[..8], *b"SPIL\x01\x01\0\0");
    assert_eq!(bytes[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!((bytes[16], bytes[24], bytes[32], bytes[40]), (9, 10, 11, 12));
    assert_eq!(bytes[44..60], [0; 16]);
    assert_eq!(Header::parse(&bytes), Ok(header));
}

const FORMAT: &str = include_str!("../../../docs/format.md");

/// The frame that the page shows in full, as bytes.
fn documented_frame() -> Vec<u8> {
    let is_row = |line: &&str| line.len() > 60 && line.ends_with('|') && !line.starts_with('|');
    let mut frame = Vec::new();
    for row in FORMAT.lines().filter(is_row) {
        assert_eq!(usize::from_str_radix(&row[..8], 16), Ok(frame.len()), "{row}");
        let bytes = row[8..row.find('|').unwrap()].split_whitespace();
        let bytes: Vec<u8> = bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let shown = |byte: &u8| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '.' };
        assert!(row.ends_with(&format!("|{}|", bytes.iter().map(shown).collect::<String>())), "{row}");
        frame.extend(bytes);
    }
    frame
}

#[test]
fn the_frame_in_the_documentation_is_the_one_that_is_written() {
    let frame = documented_frame();
    assert_eq!(frame, seal(b"spill"));
    assert_eq!(open_as(&frame, ENTRY, 5).unwrap(), "spill");
}

#[test]
fn the_header_in_the_documentation_is_the_one_that_is_written() {
    let cells = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
    let rows = FORMAT.lines().skip_while(|line| !line.starts_with("| offset ")).skip(2);
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).map(cells).collect();
    let number = |text: &str| text.parse::<usize>().unwrap();
    // A header in which every field has a value that nothing else has.
    let header = Header {
        owner: 0x0807_0605_0403_0201,
        entry: EntryId::new(0x1817_1615_1413_1211),
        tag: Tag(0x2f),
        encoded: 0x3837_3635_3433_3231,
        payload: 0x4847_4645_4443_4241,
        crc: 0x5453_5251,
    };
    let bytes = header.to_bytes();
    let mut end = 0;
    for row in rows {
        let (offset, len, field) = (number(row[1]), number(row[2]), row[3]);
        assert_eq!(offset, end, "{field} begins where the field before it ends");
        end += len;
        let expected = match field {
            "magic" => b"SPIL".to_vec(),
            "version" => vec![VERSION],
            "tag" => vec![header.tag.0],
            "reserved" => vec![0; len],
            "owner" => header.owner.to_le_bytes().to_vec(),
            "entry" => header.entry.get().to_le_bytes().to_vec(),
            "encoded" => header.encoded.to_le_bytes().to_vec(),
            "payload" => header.payload.to_le_bytes().to_vec(),
            "payload checksum" => header.crc.to_le_bytes().to_vec(),
            "header checksum" => crc32c::crc32c(&bytes[..offset]).to_le_bytes().to_vec(),
            other => panic!("no field is called {other}"),
        };
        assert_eq!(bytes[offset..end], expected, "{field}");
    }
    assert_eq!(end, ALIGN);
}

#[test]
fn the_tags_in_the_documentation_are_the_ones_that_are_written() {
    for (tag, words) in
        [(Tag::NONE, "as it is"), (Tag::LZ4, "LZ4"), (Tag::SNAPPY, "Snappy"), (Tag::ZSTD, "Zstandard")]
    {
        let row = FORMAT.lines().find(|line| {
            line.starts_with(&format!("| {} | the", tag.0)) || line.starts_with(&format!("| {} | one", tag.0))
        });
        assert!(row.is_some_and(|row| row.contains(words)), "{tag:?}: {row:?}");
    }
    assert!(FORMAT.contains(&format!("| {}–255 | free", Tag::FIRST_FREE.0)));
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
}
