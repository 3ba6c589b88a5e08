//! Drawings of results as SVG files, for docs/benchmarks.md: panels side by side, of lines or of bars.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

const PANEL: (u32, u32) = (440, 300);
const COLOURS: [RGBColor; 4] =
    [RGBColor(33, 99, 168), RGBColor(217, 127, 36), RGBColor(60, 140, 90), RGBColor(160, 55, 115)];

/// One drawing of several. All axes begin at 0.
#[derive(Debug)]
pub struct Panel {
    /// What is drawn, with its unit.
    pub title: &'static str,
    /// How.
    pub drawing: Drawing,
}

/// What a panel shows.
#[derive(Debug)]
pub enum Drawing {
    /// Named lines through points over the axis of this name.
    Lines(&'static str, Vec<(String, Vec<(f64, f64)>)>),
    /// A bar for each name.
    Bars(Vec<(String, f64)>),
}

/// Writes the panels to a file.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, panels: &[Panel]) -> Result<()> {
    draw(path, panels).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn draw(path: &Path, panels: &[Panel]) -> Result<()> {
    let count = u32::try_from(panels.len())?;
    let root = SVGBackend::new(path, (PANEL.0 * count, PANEL.1)).into_drawing_area();
    root.fill(&WHITE)?;
    for (panel, area) in panels.iter().zip(root.split_evenly((1, panels.len()))) {
        match &panel.drawing {
            Drawing::Lines(x, lines) => panel.lines(&area, x, lines)?,
            Drawing::Bars(bars) => panel.bars(&area, bars)?,
        }
    }
    Ok(root.present()?)
}

/// Without digits that say nothing.
fn label(value: &f64) -> String {
    ((value * 1000.0).round() / 1000.0).to_string()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Panel {
    fn lines(&self, area: &Area<'_>, x: &str, lines: &[(String, Vec<(f64, f64)>)]) -> Result<()> {
        let most = |of: fn(&(f64, f64)) -> f64| {
            lines.iter().flat_map(|(_, points)| points).map(of).fold(0.0, f64::max)
        };
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 15))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(58)
            .build_cartesian_2d(0.0..most(|point| point.0), 0.0..most(|point| point.1) * 1.25)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(x)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .draw()?;
        for ((name, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let drawn = chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
            drawn
                .label(name)
                .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart.configure_series_labels().position(SeriesLabelPosition::LowerRight).draw()?;
        Ok(())
    }

    fn bars(&self, area: &Area<'_>, bars: &[(String, f64)]) -> Result<()> {
        let most = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 15))
            .margin(10)
            .x_label_area_size(24)
            .y_label_area_size(130)
            .build_cartesian_2d(0.0..most * 1.1, (0..bars.len().max(1) - 1).into_segmented())?;
        let name = |at: &SegmentValue<usize>| match at {
            // The first is drawn at the top.
            SegmentValue::CenterOf(at) => {
                bars.iter().rev().nth(*at).map_or(String::new(), |bar| bar.0.clone())
            }
            _ => String::new(),
        };
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().light_line_style(TRANSPARENT).x_labels(5).y_labels(bars.len());
        mesh.x_label_formatter(&label).y_label_formatter(&name).draw()?;
        let bar = |(at, (_, value)): (usize, &(String, f64))| {
            let corners = [(0.0, SegmentValue::Exact(at)), (*value, SegmentValue::Exact(at + 1))];
            let mut bar = Rectangle::new(corners, COLOURS[0].filled());
            bar.set_margin(6, 6, 0, 0);
            bar
        };
        chart.draw_series(bars.iter().rev().enumerate().map(bar))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_titles_are_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.svg");
        let lines = vec![("zbud".to_owned(), vec![(1.0, 2.0), (40.0, 3.0)]), ("xvmalloc".to_owned(), vec![])];
        let bars = vec![("with sharing".to_owned(), 30.0), ("without".to_owned(), 88.0)];
        let panels = [
            Panel { title: "pages/s", drawing: Drawing::Lines("round", lines) },
            Panel { title: "pool, MiB", drawing: Drawing::Bars(bars) },
        ];
        write(&path, &panels).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["pages/s", "round", "zbud", "xvmalloc", "pool, MiB", "with sharing", "without"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let nowhere = write(Path::new("/nonexistent/a.svg"), &panels).unwrap_err().to_string();
        assert!(nowhere.starts_with("/nonexistent/a.svg: "), "{nowhere}");
    }
}
