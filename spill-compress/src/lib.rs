//! The codecs of Spill: LZ4, Snappy and Zstandard.
