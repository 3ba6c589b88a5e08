//! Workloads and comparisons with peers.

pub mod cgroup;
pub mod comparison;
pub mod histogram;
pub mod kernel_swap;
pub mod measure;
pub mod pages;
pub mod redis;
pub mod suite;
pub mod touch;

pub use ramfold_survey::random;
