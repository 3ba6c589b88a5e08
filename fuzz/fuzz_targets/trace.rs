//! The parser of traces, on a text that nobody wrote.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ramfold_fuzz::trace(data));
