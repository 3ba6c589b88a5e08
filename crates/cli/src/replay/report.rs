//! The report of `replay`: one JSON object, a table, or a page with the curve.

use super::Played;
use crate::html::chart::{Axis, Bar, Line, bars, lines};
use crate::html::{self, Document};
use crate::size;
use ramfold_survey::mrc::Point;
use ramfold_survey::replay::{Outcome, Policy, Settings};
use serde_json::json;
use std::fmt::Write;

/// Lines of a curve on a terminal.
const CURVE_LINES: usize = 16;

/// One line.
pub fn json(played: &Played) -> String {
    let cases = played.cases.iter().map(|(settings, outcome)| {
        let mut value = json!(settings);
        let more = json!({ "hit_ratio": outcome.hit_ratio(), "pool_hit_ratio": outcome.pool_hit_ratio() });
        for part in [json!(outcome), more] {
            let (Some(all), Some(part)) = (value.as_object_mut(), part.as_object()) else { continue };
            all.extend(part.clone());
        }
        value
    });
    let curve =
        played.curve.as_ref().map(|(points, rate)| json!({ "sampled_share": rate, "points": points }));
    let cases: Vec<_> = cases.collect();
    format!("{}\n", json!({ "trace": played.trace, "pages": played.pages, "cases": cases, "mrc": curve }))
}

/// A line a case.
pub fn table(played: &Played, with_curve: bool) -> String {
    let (memory, touches) =
        played.cases.first().map_or((0, 0), |(settings, outcome)| (settings.memory, outcome.touches));
    let mut text = format!(
        "{}: {} pages, {touches} touches, in {}\n\n",
        played.trace,
        played.pages,
        size::display(memory)
    );
    text += "policy    pool  accept    hit  in pool   tier reads   writes   written back    rejects   limit hit   at limit    seconds\n";
    for (settings, outcome) in &played.cases {
        text += &line(settings, outcome);
    }
    match &played.curve {
        Some(curve) if with_curve => text + &curve_table(&curve.0, curve.1),
        _ => text,
    }
}

fn line(settings: &Settings, outcome: &Outcome) -> String {
    let (pool, accept) = knobs(settings);
    format!(
        "{:<8} {pool:>5} {accept:>7} {:>5.1} % {:>6.1} % {:>12} {:>8} {:>14} {:>10} {:>11} {:>10} {:>10.2}\n",
        settings.policy.name(),
        outcome.hit_ratio() * 100.0,
        outcome.pool_hit_ratio() * 100.0,
        outcome.tier_reads,
        outcome.tier_writes,
        outcome.written_back_pages,
        outcome.rejects,
        outcome.pool_limit_hit,
        outcome.pool_limit_hit_at_limit,
        outcome.elapsed_s
    )
}

/// Without a pool there are none.
fn knobs(settings: &Settings) -> (String, String) {
    if settings.policy == Policy::None {
        return ("-".into(), "-".into());
    }
    (format!("{} %", settings.max_pool_percent), format!("{} %", settings.accept_threshold_percent))
}

fn curve_table(points: &[Point], rate: f64) -> String {
    let mut text =
        format!("\nan LRU of so many pages would miss ({:.0} % of the pages followed)\n", rate * 100.0);
    for point in points.iter().step_by(points.len().div_ceil(CURVE_LINES).max(1)) {
        let _ = writeln!(text, "{:>12}  {:>5.1} %", point.pages, point.miss_ratio * 100.0);
    }
    text
}

/// The page.
pub fn html(played: &Played) -> String {
    let memory = played.cases.first().map_or(0, |(settings, _)| settings.memory);
    let lead = format!("{} pages in {}", played.pages, size::display(memory));
    let mut page = Document::new(&format!("Replay of {}", played.trace), &lead);
    page.figure("How long it takes", &times(played), "Estimated seconds, from the costs and one device.");
    if let Some((points, rate)) = &played.curve {
        let caption =
            format!("Misses of an LRU of so many pages; {:.0} % of the pages were followed.", rate * 100.0);
        page.figure("How much memory it needs", &curve(points), &caption);
    }
    page.figure(
        "All figures",
        &figures(played),
        "Policies none, one-page and shrink are models; store is the real one.",
    );
    page.finish()
}

fn times(played: &Played) -> String {
    let most = played.cases.iter().map(|(_, outcome)| outcome.elapsed_s).fold(0.0, f64::max);
    let bar = |(settings, outcome): &(Settings, Outcome)| {
        let (pool, accept) = knobs(settings);
        let knobs = if pool == "-" { String::new() } else { format!(", {pool}, {accept}") };
        Bar {
            name: format!("{}{knobs}", settings.policy.name()),
            label: format!("{:.2} s, {} reads", outcome.elapsed_s, outcome.tier_reads),
            parts: vec![outcome.elapsed_s],
        }
    };
    bars(&played.cases.iter().map(bar).collect::<Vec<_>>(), most, &[])
}

fn curve(points: &[Point]) -> String {
    let line = Line {
        name: "LRU".into(),
        points: points.iter().map(|point| (point.pages as f64, point.miss_ratio * 100.0)).collect(),
    };
    let most = points.last().map_or(1.0, |point| point.pages as f64);
    let x = Axis { name: "pages", most, show: |pages| format!("{pages:.0}") };
    let y = Axis { name: "misses", most: 100.0, show: |percent| format!("{percent:.0} %") };
    lines(&[line], &x, &y, false)
}

fn figures(played: &Played) -> String {
    let head = [
        "policy",
        "pool",
        "accept",
        "hit",
        "in pool",
        "tier reads",
        "tier writes",
        "written back",
        "rejects",
        "limit hit",
        "at limit",
        "seconds",
    ];
    let cells = |(settings, outcome): &(Settings, Outcome)| {
        let (pool, accept) = knobs(settings);
        vec![
            settings.policy.name().to_owned(),
            pool,
            accept,
            format!("{:.1} %", outcome.hit_ratio() * 100.0),
            format!("{:.1} %", outcome.pool_hit_ratio() * 100.0),
            outcome.tier_reads.to_string(),
            outcome.tier_writes.to_string(),
            outcome.written_back_pages.to_string(),
            outcome.rejects.to_string(),
            outcome.pool_limit_hit.to_string(),
            outcome.pool_limit_hit_at_limit.to_string(),
            format!("{:.2}", outcome.elapsed_s),
        ]
    };
    html::table(&head, &played.cases.iter().map(cells).collect::<Vec<_>>())
}
