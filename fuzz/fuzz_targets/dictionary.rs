//! Dictionaries of any bytes, and pages compressed with them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ramfold_fuzz::dictionary(data));
