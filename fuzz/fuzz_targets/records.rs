//! The file tier, on a file that others have written in.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ramfold_fuzz::records(data));
