//! The report of `inspect`: one JSON object, or tables for people.

use crate::size;
use crate::survey::Survey;
use ramfold::PAGE_SIZE;
use ramfold_survey::look::Look;
use ramfold_survey::measure::Row;
use ramfold_survey::watch::Watched;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write;

/// Places that a table lists.
const PLACES: usize = 8;

/// A place where memory is.
#[derive(Debug)]
pub struct Place<'a> {
    pub name: &'a str,
    pub pages: u64,
    /// Share of same-filled pages; None if no page of it was looked at.
    pub same_filled: Option<f64>,
    /// Of the sampled pages there, under the first compressor; None if there are none.
    pub ratio: Option<f64>,
}

/// One line.
pub fn json(survey: &Survey) -> String {
    let look = &survey.look;
    let (least, most) = look.duplicate_share();
    let sizes = survey.sizes.iter().map(|sizes| (sizes.compressor.clone(), json!(sizes.histogram())));
    let report = json!({
        "pages": look.pages,
        "bytes": survey.memory(),
        "sources": survey.population.sources().iter().map(|source| &source.name).collect::<Vec<_>>(),
        "looked_at": look.looked_at,
        "census": look.is_census(),
        "vanished": look.vanished,
        "swapped_pages": survey.population.swapped,
        "sampled_pages": look.sample.len(),
        "zero_share": look.share(look.zero),
        "same_filled_share": look.same_filled_share(),
        "same_filled_error95": look.same_filled_error(),
        "duplicate_share": { "least": least, "most": most },
        "duplicates_within": look.share(look.duplicates_within),
        "duplicates_across": look.share(look.duplicates_across),
        "rows": survey.rows.iter().map(|row| row_json(row, survey)).collect::<Vec<_>>(),
        "kernel_zsmalloc_bytes": survey.kernel_pools().collect::<HashMap<_, _>>(),
        "compressed_sizes_256": sizes.collect::<serde_json::Map<_, _>>(),
        "places": places(survey).iter().map(place_json).collect::<Vec<_>>(),
        "watched": survey.watched,
    });
    format!("{report}\n")
}

fn row_json(row: &Row, survey: &Survey) -> Value {
    let mut value = json!(row);
    value["saved"] = json!(row.saved(survey.memory()));
    value
}

fn place_json(place: &Place<'_>) -> Value {
    json!({ "name": place.name, "pages": place.pages, "same_filled_share": place.same_filled, "ratio": place.ratio })
}

/// What was seen, what would be saved, where it is. Of larger units only the first zpool is listed.
pub fn table(survey: &Survey) -> String {
    let mut text = head(survey) + "\n";
    text += "compressor  unit  zpool     ratio       pool     shared   saved   us: store   load   incompressible\n";
    let zpool = survey.rows.first().map_or("", |row| row.zpool.as_str());
    for row in survey.rows.iter().filter(|row| row.unit_kib == 4 || row.zpool == zpool) {
        text += &line(row, survey.memory());
    }
    let (error, sampled) = (largest_error(survey, 4), survey.look.sample.len());
    let _ = writeln!(
        text,
        "(from {sampled} pages; pool ± {error:.1} %, of larger units ± {:.1} %)\n",
        largest_error(survey, 64)
    );
    text += &in_the_kernel(survey);
    text += &histogram(survey);
    text += &where_it_is(survey);
    text + &survey.watched.as_ref().map_or_else(String::new, watched)
}

/// The largest uncertainty among the rows of a unit, in percent.
pub fn largest_error(survey: &Survey, unit_kib: u64) -> f64 {
    let rows = survey.rows.iter().filter(|row| row.unit_kib == unit_kib);
    rows.map(|row| row.error_percent).fold(0.0, f64::max)
}

/// One or two lines on the pages themselves.
pub fn head(survey: &Survey) -> String {
    let look = &survey.look;
    let mut text = format!("{} pages ({})", look.pages, size::display(survey.memory()));
    if !look.is_census() {
        let _ = write!(text, ", {} looked at", look.looked_at);
    }
    let _ = write!(
        text,
        ": {:.1} % zero, {:.1} % otherwise same-filled{}, {}",
        look.share(look.zero) * 100.0,
        look.share(look.same_filled - look.zero) * 100.0,
        same_filled_error(look),
        duplicates(survey)
    );
    if survey.population.swapped > 0 {
        let _ = write!(text, "; {} more are swapped out", survey.population.swapped);
    }
    if look.vanished > 0 {
        let _ = write!(text, "; {} went away meanwhile", look.vanished);
    }
    text + "\n"
}

/// Of both shares together; of a census there is none.
fn same_filled_error(look: &Look) -> String {
    if look.is_census() { String::new() } else { format!(" (± {:.1} %)", look.same_filled_error() * 100.0) }
}

/// Duplicates: a number, or two bounds.
pub fn duplicates(survey: &Survey) -> String {
    let (least, most) = survey.look.duplicate_share();
    if survey.look.is_census() {
        let across = survey.look.share(survey.look.duplicates_across) * 100.0;
        let several = survey.population.sources().len() > 1;
        let between = if several { format!(" ({across:.1} % across)") } else { String::new() };
        return format!("{:.1} % duplicates{between}", least * 100.0);
    }
    format!("{:.1} to {:.1} % duplicates", least * 100.0, most * 100.0)
}

fn line(row: &Row, memory: u64) -> String {
    format!(
        "{:<11} {:>3}K  {:<9} {:>5.2} {:>10} {:>10} {:>5.1} %   {:>9.1} {:>6.1}   {:>12.1} %\n",
        row.compressor,
        row.unit_kib,
        row.zpool,
        row.ratio,
        bytes(row.pool_bytes),
        bytes(row.pool_bytes_shared),
        row.saved(memory) * 100.0,
        row.store_us,
        row.load_us,
        row.incompressible * 100.0
    )
}

/// A computed number of bytes for people.
pub fn bytes(value: f64) -> String {
    // Pools are smaller than 2^53 bytes.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    size::display(value.max(0.0) as u64)
}

fn in_the_kernel(survey: &Survey) -> String {
    let pools = survey.kernel_pools().map(|(compressor, pool)| format!("{compressor} {}", bytes(pool)));
    format!("in zram or zswap (the kernel's zsmalloc): {}\n\n", pools.collect::<Vec<_>>().join(", "))
}

fn histogram(survey: &Survey) -> String {
    let mut text = "compressed bytes, % of pages:".to_owned();
    for upper in (256..=PAGE_SIZE).step_by(512) {
        let _ = write!(text, " <{:>5}", upper + 256);
    }
    text += "    raw\n";
    for sizes in &survey.sizes {
        let (counts, all) = (sizes.histogram(), sizes.bytes.len().max(1) as f64);
        let _ = write!(text, "{:<29}", sizes.compressor);
        for pair in counts.chunks(2) {
            let _ = write!(text, " {:>6.1}", pair.iter().sum::<u64>() as f64 * 100.0 / all);
        }
        text += "\n";
    }
    text + "\n"
}

fn where_it_is(survey: &Survey) -> String {
    let first = survey.sizes.first().map_or("", |sizes| sizes.compressor.as_str());
    let mut text = format!("     pages  same-filled  {first:>8}  where\n");
    for place in places(survey).iter().take(PLACES) {
        let ratio = place.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        let same = place.same_filled.map_or_else(|| "-".into(), |same| format!("{:.1} %", same * 100.0));
        let _ = writeln!(text, "{:>10}  {same:>11}  {ratio:>8}  {}", place.pages, place.name);
    }
    text
}

/// Where the memory is, the largest first.
pub fn places(survey: &Survey) -> Vec<Place<'_>> {
    let pages = survey.population.pages_of_places();
    let mut places: Vec<_> = survey
        .population
        .places()
        .iter()
        .enumerate()
        .map(|(number, name)| {
            let (looked_at, same) = survey.look.places[number];
            let same_filled = (looked_at > 0).then(|| same as f64 / looked_at as f64);
            Place { name, pages: pages[number], same_filled, ratio: ratio_at(survey, number) }
        })
        .filter(|place| place.pages > 0)
        .collect();
    places.sort_by_key(|place| std::cmp::Reverse(place.pages));
    places
}

fn ratio_at(survey: &Survey, place: usize) -> Option<f64> {
    let sizes = survey.sizes.first()?;
    let here = survey.look.sample.iter().zip(&sizes.bytes);
    let (pages, bytes) = here
        .filter(|(sampled, _)| sampled.at.place as usize == place)
        .fold((0u64, 0u64), |(pages, sum), (_, bytes)| (pages + 1, sum + u64::from(*bytes)));
    (pages > 0).then(|| (pages * PAGE_SIZE as u64) as f64 / bytes as f64)
}

fn watched(watched: &Watched) -> String {
    let mut text = "\nnot used for    cold\n".to_owned();
    for age in &watched.ages {
        let _ = writeln!(
            text,
            "{:>9.1} s  {:>5.1} %  {}",
            age.seconds,
            age.cold_share * 100.0,
            size::display(age.cold_bytes)
        );
    }
    let _ = writeln!(text, "{:.1} % of the sampled pages were written", watched.written_share * 100.0);
    text + "(reads and writes by referenced bits, for all of a huge page at once; writes by contents: a page\n\
            written with what it held is not seen)\n"
}
