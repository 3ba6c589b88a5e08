//! The report of `inspect` as a page: what would be saved, by what, at which cost.

use super::report;
use crate::html::chart::{Axis, Bar, Line, bars, lines};
use crate::html::{Document, table};
use crate::size;
use crate::survey::Survey;
use ramfold_survey::measure::Row;

/// Places that are drawn.
const PLACES: usize = 10;

/// The page.
pub fn html(survey: &Survey) -> String {
    let names: Vec<_> = survey.population.sources().iter().map(|source| source.name.as_str()).collect();
    let title = match names.as_slice() {
        [one] => format!("Memory of {one}"),
        [first, rest @ ..] => format!("Memory of {first} and {} more", rest.len()),
        [] => String::from("Memory"),
    };
    let mut page = Document::new(&title, report::head(survey).trim_end());
    page.tiles(&tiles(survey));
    let error = report::largest_error(survey, 4);
    page.figure(
        "What would be saved",
        &savings(survey),
        &format!("All pages in a compressed pool of pages of 4 KiB, equal pages sharing their memory; ± {error:.1} %."),
    );
    page.figure(
        "How small at which cost",
        &costs(survey),
        "Left is quicker to load, down is smaller. A larger unit is smaller, and all of it is decompressed for one \
         page. Units of 16 and 64 KiB are a forecast.",
    );
    page.figure(
        "How far pages compress",
        &histogram(survey),
        "Share of the pages by bytes after compression; at 4096 those that do not compress. Same-filled pages are \
         not among them.",
    );
    if let Some(watched) = &survey.watched {
        let caption = format!(
            "Memory that was not used for so long, by referenced bits. {:.1} % of the sampled pages were written.",
            watched.written_share * 100.0
        );
        page.figure("What stays cold", &cold(survey), &caption);
    }
    page.figure(
        "Where it is",
        &places(survey),
        "Pages, and how the first compressor packs a sample of them.",
    );
    page.figure(
        "All figures",
        &figures(survey),
        "us: microseconds a page, on the machine that made this report.",
    );
    page.finish()
}

fn tiles(survey: &Survey) -> Vec<(String, &'static str)> {
    let look = &survey.look;
    let best = survey.page_rows().max_by(|a, b| b.pool_bytes_shared.total_cmp(&a.pool_bytes_shared));
    let saved = best.map_or(0.0, |row| row.saved(survey.memory()) * 100.0);
    vec![
        (size::display(survey.memory()), "anonymous memory"),
        (format!("{saved:.0} %"), "saved at best, in pages of 4 KiB"),
        (format!("{:.1} %", look.same_filled_share() * 100.0), "same-filled pages"),
        (report::duplicates(survey).replace(" duplicates", ""), "duplicate pages"),
    ]
}

fn savings(survey: &Survey) -> String {
    let memory = survey.memory() as f64;
    let bar = |row: &Row| Bar {
        name: format!("{} {}", row.compressor, row.zpool),
        label: format!(
            "{}, {:.0} % saved",
            report::bytes(row.pool_bytes_shared),
            row.saved(survey.memory()) * 100.0
        ),
        parts: vec![row.pool_bytes_shared, (memory - row.pool_bytes_shared).max(0.0)],
    };
    bars(&survey.page_rows().map(bar).collect::<Vec<_>>(), memory, &["pool", "saved"])
}

/// A line a compressor, its points the units; zsmalloc, or the first zpool there is.
fn costs(survey: &Survey) -> String {
    let zpool = survey.rows.iter().find(|row| row.zpool == "zsmalloc").or(survey.rows.first());
    let zpool = zpool.map_or("", |row| row.zpool.as_str());
    let rows = || survey.rows.iter().filter(|row| row.zpool == zpool);
    let point = |row: &Row| (row.load_us, (1.0 - row.saved(survey.memory())) * 100.0);
    let line = |name: &str| Line {
        name: name.to_owned(),
        points: rows().filter(|row| row.compressor == name).map(point).collect(),
    };
    let all: Vec<Line> = survey.sizes.iter().map(|sizes| line(&sizes.compressor)).collect();
    let slowest = rows().map(|row| row.load_us).fold(1.0, f64::max);
    let x = Axis {
        name: "microseconds to load a page (units of 4, 16, 64 KiB)",
        most: slowest,
        show: |us| format!("{us:.0}"),
    };
    let most = all.iter().flat_map(|line| &line.points).map(|point| point.1).fold(1.0, f64::max);
    let y = Axis { name: "pool, as a share of the memory", most, show: |percent| format!("{percent:.0} %") };
    lines(&all, &x, &y, true)
}

fn histogram(survey: &Survey) -> String {
    let line = |sizes: &ramfold_survey::measure::Sizes| Line {
        name: sizes.compressor.clone(),
        points: (0u32..)
            .zip(sizes.histogram())
            .map(|(bucket, count)| {
                (f64::from(bucket) * 256.0, count as f64 * 100.0 / sizes.bytes.len().max(1) as f64)
            })
            .collect(),
    };
    let all: Vec<Line> = survey.sizes.iter().map(line).collect();
    let most = all.iter().flat_map(|line| &line.points).map(|point| point.1).fold(1.0, f64::max);
    let x = Axis { name: "bytes after compression, from", most: 4096.0, show: |bytes| format!("{bytes:.0}") };
    let y = Axis { name: "share of pages", most, show: |percent| format!("{percent:.0} %") };
    lines(&all, &x, &y, false)
}

fn cold(survey: &Survey) -> String {
    let ages = survey.watched.iter().flat_map(|watched| &watched.ages);
    let points: Vec<_> = ages.map(|age| (age.seconds, age.cold_share * 100.0)).collect();
    let x = Axis {
        name: "seconds",
        most: points.last().map_or(1.0, |point| point.0),
        show: |seconds| format!("{seconds:.1}"),
    };
    let y = Axis { name: "not used", most: 100.0, show: |percent| format!("{percent:.0} %") };
    lines(&[Line { name: "not used for so long".into(), points }], &x, &y, true)
}

fn places(survey: &Survey) -> String {
    let all = report::places(survey);
    let most = all.first().map_or(1.0, |place| place.pages as f64);
    let bar = |place: &report::Place<'_>| Bar {
        name: short(place.name),
        label: place.ratio.map_or_else(
            || format!("{} pages", place.pages),
            |ratio| format!("{} pages, {ratio:.1} : 1", place.pages),
        ),
        parts: vec![place.pages as f64],
    };
    bars(&all.iter().take(PLACES).map(bar).collect::<Vec<_>>(), most, &[])
}

/// The end of a name that is too long for its column.
fn short(name: &str) -> String {
    let length = name.chars().count();
    if length <= 24 {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(length - 23).collect::<String>())
    }
}

fn figures(survey: &Survey) -> String {
    let head = [
        "compressor",
        "unit",
        "zpool",
        "ratio",
        "±",
        "pool",
        "shared",
        "saved",
        "store us",
        "load us",
        "incompressible",
    ];
    let cells = |row: &Row| {
        vec![
            row.compressor.clone(),
            format!("{} KiB", row.unit_kib),
            row.zpool.clone(),
            format!("{:.2}", row.ratio),
            format!("{:.1} %", row.error_percent),
            report::bytes(row.pool_bytes),
            report::bytes(row.pool_bytes_shared),
            format!("{:.1} %", row.saved(survey.memory()) * 100.0),
            format!("{:.1}", row.store_us),
            format!("{:.1}", row.load_us),
            format!("{:.1} %", row.incompressible * 100.0),
        ]
    };
    table(&head, &survey.rows.iter().map(cells).collect::<Vec<_>>())
}
