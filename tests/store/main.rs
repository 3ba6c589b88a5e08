//! The store as a whole, over the real codecs and zpools, with doubles that fail on demand.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers in these tests are small, or random and meant to be cut"
)]

mod doubles;
mod faults;
mod fresh;
mod metadata;
mod model;
mod rules;
mod stress;
mod tiers;
