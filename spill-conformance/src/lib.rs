//! The suite that authors of Spill stores, compressors, codecs and policies run, and a fault-injecting store.
