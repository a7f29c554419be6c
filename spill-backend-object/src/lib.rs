//! The object-storage store of Spill.
