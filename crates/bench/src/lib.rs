//! Workloads and comparisons with peers.

pub mod build;
pub mod build_run;
pub mod cgroup;
pub mod comparison;
pub mod cost;
pub mod cost_table;
pub mod histogram;
pub mod inversion;
pub mod kernel_swap;
pub mod measure;
pub mod mounted;
pub mod nbd_client;
pub mod options;
pub mod pages;
pub mod plot;
pub mod process;
pub mod programs;
pub mod redis;
pub mod suite;
pub mod throttle;
pub mod touch;
pub mod zram;

pub use ramfold_survey::random;
