//! The library that `ramfold run` puts into programs.
