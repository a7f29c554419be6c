//! The suites over the compressors, codecs and victim policies that are shipped.
#![allow(clippy::expect_used, reason = "tests")]

use std::{process::ExitCode, sync::Arc};

use bytes::Bytes;
use spill_compress::{Lz4, Snappy, Zstd};
use spill_conformance::{Arguments, Suite, codec_suite, compressor_suite, policy_suite};
use spill_core::{BytesCodec, policies};

fn main() -> ExitCode {
    let texts = vec![String::new(), "text".to_owned(), "ä€𝄞".repeat(1000)];
    let mut suites = vec![
        codec_suite("bytes of String", BytesCodec, texts),
        codec_suite("bytes of Vec", BytesCodec, vec![Vec::new(), vec![0u8], vec![7; 5000]]),
        codec_suite("bytes of Bytes", BytesCodec, vec![Bytes::new(), Bytes::from_static(b"\0\xFF")]),
        compressor_suite(Arc::new(Lz4)),
        compressor_suite(Arc::new(Snappy::new())),
        compressor_suite(Arc::new(Zstd::default())),
    ];
    suites.extend(policies::NAMES.map(|name| policy_suite(move || policies::by_name(name).expect(name))));
    let Some(all) = suites.into_iter().reduce(Suite::and) else { return ExitCode::FAILURE };
    all.run(&Arguments::from_args()).exit_code()
}
