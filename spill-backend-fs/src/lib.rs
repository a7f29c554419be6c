//! The local-file store of Spill.
