//! The advice: five lines to act on, then the lines to type; or one JSON object.

use super::Aim;
use super::kernel::Kernel;
use super::plan::{Plan, Settings};
use crate::inspect::report::{bytes, duplicates};
use crate::run::MIN_LIMIT;
use crate::survey::Survey;
use serde_json::{Value, json};
use std::fmt::Write;

/// By how much denser ramfold has to be to be worth its slower faults.
const DENSER: f64 = 0.9;
const MIB: f64 = 1024.0 * 1024.0;

/// For people.
pub fn text(survey: &Survey, aim: &Aim, plan: &Plan, kernel: &Kernel) -> String {
    let mut lines = vec![
        format!("memory   {}", memory(survey, aim)),
        format!("ramfold  {}", ramfold(&plan.ramfold)),
        format!("zram     {}", plan.zram.as_ref().map_or_else(no_zram, named)),
        format!("zswap    {}", plan.zswap.as_ref().map_or_else(no_zswap, named)),
        format!("choose   {}", choice(plan, kernel)),
    ];
    if let Some(missed) = &plan.missed {
        lines.push(format!("but      {missed}"));
    }
    let mut text = lines.join("\n") + "\n";
    if let Some(zram) = &plan.zram {
        let _ =
            write!(text, "\nzram, as root (or the section for zram-generator.conf):\n{}", zram_lines(zram));
    }
    if let Some(zswap) = &plan.zswap {
        let needs = if kernel.disk_swap { "" } else { "; needs a swap device or file, and there is none" };
        let _ = write!(text, "\nzswap, as root{needs}:\n{}", zswap_lines(zswap, kernel));
    }
    text
}

fn memory(survey: &Survey, aim: &Aim) -> String {
    let aim = match aim {
        Aim::Bytes(limit) => format!("to be held within {}", bytes(*limit as f64)),
        Aim::Slowdown(percent) => format!("to be made smaller for at most {percent} % of time"),
    };
    format!(
        "{}, {:.1} % same-filled, {}; {aim}",
        bytes(survey.memory() as f64),
        survey.look.same_filled_share() * 100.0,
        duplicates(survey)
    )
}

fn ramfold(settings: &Settings) -> String {
    match command(settings) {
        Some(command) => format!("{command}\n         {}", expected(settings)),
        None => format!(
            "ramfold run takes no limit below {}: for so little memory it is of no use",
            bytes(MIN_LIMIT as f64)
        ),
    }
}

/// None if the limit is less than `ramfold run` takes.
fn command(ramfold: &Settings) -> Option<String> {
    let runs = ramfold.limit >= MIN_LIMIT as f64;
    runs.then(|| {
        format!(
            "ramfold run -m {:.0}M --compressor {} --recomp-algorithm none --max-pool-percent {:.0} -- PROGRAM",
            (ramfold.limit / MIB).ceil(),
            ramfold.compressor,
            ramfold.max_pool_percent()
        )
    })
}

fn expected(settings: &Settings) -> String {
    let forecast = &settings.forecast;
    format!(
        "{} leave and take {}: {} saved; {:.0} us for a page that comes back",
        bytes(forecast.evicted),
        bytes(forecast.pool),
        bytes(forecast.saved()),
        settings.miss_us
    )
}

/// With the compressor.
fn named(settings: &Settings) -> String {
    format!("{}: {}", settings.compressor, expected(settings))
}

fn no_zram() -> String {
    "this kernel has no zram device (modprobe zram)".into()
}

fn no_zswap() -> String {
    "this kernel has no zswap with a compressor that is known".into()
}

/// Who is to keep the pages, and why.
fn choice(plan: &Plan, kernel: &Kernel) -> String {
    let own = &plan.ramfold;
    let (name, other) = match (&plan.zswap, &plan.zram) {
        (Some(zswap), _) if kernel.disk_swap => ("zswap", zswap),
        (_, Some(zram)) => ("zram", zram),
        (Some(zswap), None) => ("zswap", zswap),
        (None, None) if command(own).is_none() => return "none of them: leave it as it is".into(),
        (None, None) => return "ramfold run: this kernel offers neither zram nor zswap".into(),
    };
    if command(own).is_none() {
        return format!("{name} if you are root and mean the whole machine; else leave it as it is");
    }
    let (ours, theirs) = (own.whole_pool, other.whole_pool);
    if ours < theirs * DENSER {
        return format!(
            "ramfold run: its pool would be {:.0} % smaller than {name}'s ({} for all of it, not {})",
            (1.0 - ours / theirs) * 100.0,
            bytes(ours),
            bytes(theirs)
        );
    }
    let reason = if name == "zswap" {
        "what is coldest can go to the swap there is"
    } else {
        "there is no swap on a disk"
    };
    format!(
        "{name} if you are root and mean the whole machine: as dense, a fault costs less, and {reason}; else ramfold run"
    )
}

fn zram_lines(zram: &Settings) -> String {
    let (size, limit) = ((zram.forecast.evicted / MIB).ceil(), (zram.mem_limit() / MIB).ceil());
    format!(
        "  echo {name} > /sys/block/zram0/comp_algorithm\n  echo {size:.0}M > /sys/block/zram0/disksize\n  \
         echo {limit:.0}M > /sys/block/zram0/mem_limit\n  mkswap /dev/zram0 && swapon -p 100 /dev/zram0\n\n  \
         [zram0]\n  compression-algorithm = {name}\n  zram-size = {size:.0}\n  zram-resident-limit = {limit:.0}\n",
        name = zram.compressor
    )
}

fn zswap_lines(zswap: &Settings, kernel: &Kernel) -> String {
    let values = [
        ("compressor", zswap.compressor.clone()),
        ("max_pool_percent", format!("{:.0}", zswap.zswap_percent(kernel.memory))),
        ("accept_threshold_percent", "90".to_owned()),
        ("enabled", "Y".to_owned()),
    ];
    let line =
        |(name, value): &(&str, String)| format!("  echo {value} > /sys/module/zswap/parameters/{name}\n");
    values.iter().map(line).collect()
}

/// One line.
pub fn json(survey: &Survey, aim: &Aim, plan: &Plan, kernel: &Kernel) -> String {
    let (target_bytes, slowdown) = match aim {
        Aim::Bytes(bytes) => (Some(*bytes), None),
        Aim::Slowdown(percent) => (None, Some(*percent)),
    };
    let mut ramfold = settings_json(&plan.ramfold);
    ramfold["command"] = json!(command(&plan.ramfold));
    ramfold["max_pool_percent"] = json!(plan.ramfold.max_pool_percent());
    let zram = plan.zram.as_ref().map(|zram| {
        let mut value = settings_json(zram);
        value["disksize"] = json!(zram.forecast.evicted);
        value["mem_limit"] = json!(zram.mem_limit());
        value
    });
    let zswap = plan.zswap.as_ref().map(|zswap| {
        let mut value = settings_json(zswap);
        value["max_pool_percent"] = json!(zswap.zswap_percent(kernel.memory));
        value["accept_threshold_percent"] = json!(90);
        value
    });
    let report = json!({
        "bytes": survey.memory(),
        "target_bytes": target_bytes,
        "slowdown_percent": slowdown,
        "ramfold": ramfold,
        "zram": zram,
        "zswap": zswap,
        "choose": choice(plan, kernel),
        "missed": plan.missed,
        "watched": survey.watched,
    });
    format!("{report}\n")
}

fn settings_json(settings: &Settings) -> Value {
    json!({
        "compressor": settings.compressor,
        "measured_as": settings.measured_as,
        "limit": settings.limit,
        "evicted_bytes": settings.forecast.evicted,
        "pool_bytes": settings.forecast.pool,
        "saved_bytes": settings.forecast.saved(),
        "beyond_bytes": settings.forecast.beyond,
        "miss_us": settings.miss_us,
    })
}
