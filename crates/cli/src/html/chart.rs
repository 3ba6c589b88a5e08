//! Drawings as inline SVG: bars, and lines over two axes. Series take the page's colours in turn.

use super::escape;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
/// Colours that the page has.
const COLOURS: usize = 7;

/// A bar of stacked parts.
#[derive(Debug)]
pub struct Bar {
    pub name: String,
    /// To the right of it.
    pub label: String,
    pub parts: Vec<f64>,
}

/// Horizontal bars, to one scale that ends at `most`. `legend` names the parts.
pub fn bars(bars: &[Bar], most: f64, legend: &[&str]) -> String {
    let (left, right, step) = (170.0, 190.0, 26.0);
    let height = bars.len() as f64 * step + 30.0;
    let mut svg = open(height, &bars.iter().map(|bar| bar.name.as_str()).collect::<Vec<_>>().join(", "));
    let scale = (WIDTH - left - right) / most.max(f64::MIN_POSITIVE);
    for (index, bar) in bars.iter().enumerate() {
        let y = index as f64 * step + 4.0;
        text(&mut svg, left - 8.0, y + 13.0, "end", "", &bar.name);
        let mut x = left;
        for (part, value) in bar.parts.iter().enumerate() {
            let width = value * scale;
            let colour =
                if part + 1 == bar.parts.len() && part > 0 { "faint".into() } else { format!("c{part}") };
            put(
                &mut svg,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"18\" fill=\"var(--{colour})\"/>"
                ),
            );
            x += width;
        }
        text(&mut svg, x + 8.0, y + 13.0, "start", "soft", &bar.label);
    }
    let mut x = left;
    for (part, name) in legend.iter().enumerate() {
        let colour = if part + 1 == legend.len() && part > 0 { "faint".into() } else { format!("c{part}") };
        let y = height - 16.0;
        put(
            &mut svg,
            format_args!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"10\" height=\"10\" fill=\"var(--{colour})\"/>"
            ),
        );
        text(&mut svg, x + 15.0, y + 9.0, "start", "soft", name);
        x += 40.0 + name.len() as f64 * 7.0;
    }
    svg + "</svg>"
}

/// A named line through points.
#[derive(Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// An axis from 0 to `most`.
#[derive(Debug)]
pub struct Axis<'a> {
    pub name: &'a str,
    pub most: f64,
    /// How a value is written.
    pub show: fn(f64) -> String,
}

/// Lines; `dots` marks their points.
pub fn lines(lines: &[Line], x: &Axis<'_>, y: &Axis<'_>, dots: bool) -> String {
    let (left, top, width, height) = (70.0, 28.0, WIDTH - 90.0, 260.0);
    let mut svg = open(top + height + 48.0, &format!("{} by {}", y.name, x.name));
    let at = |point: &(f64, f64)| {
        let share = |value: f64, axis: &Axis<'_>| (value / axis.most.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        (left + share(point.0, x) * width, top + height - share(point.1, y) * height)
    };
    for tick in 0..=4u8 {
        let part = f64::from(tick) / 4.0;
        let ((across, _), (_, up)) = (at(&(x.most * part, 0.0)), at(&(0.0, y.most * part)));
        put(
            &mut svg,
            format_args!(
                "<line class=\"grid\" x1=\"{left}\" x2=\"{:.1}\" y1=\"{up:.1}\" y2=\"{up:.1}\"/>",
                left + width
            ),
        );
        text(&mut svg, left - 8.0, up + 4.0, "end", "soft", &(y.show)(y.most * part));
        text(&mut svg, across, top + height + 18.0, "middle", "soft", &(x.show)(x.most * part));
    }
    text(&mut svg, left + width / 2.0, top + height + 40.0, "middle", "soft", x.name);
    text(&mut svg, left + width, 15.0, "end", "soft", y.name);
    let mut legend = left;
    for (index, line) in lines.iter().enumerate() {
        let colour = format!("var(--c{})", index % COLOURS);
        let points: Vec<String> = line.points.iter().map(at).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        put(
            &mut svg,
            format_args!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                points.join(" ")
            ),
        );
        for (x, y) in line.points.iter().map(at).filter(|_| dots) {
            put(&mut svg, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>"));
        }
        put(
            &mut svg,
            format_args!("<rect x=\"{legend:.1}\" y=\"6\" width=\"10\" height=\"10\" fill=\"{colour}\"/>"),
        );
        text(&mut svg, legend + 15.0, 15.0, "start", "soft", &line.name);
        legend += 40.0 + line.name.len() as f64 * 7.0;
    }
    svg + "</svg>"
}

fn open(height: f64, label: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">", escape(label))
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
    put(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            escape(text)
        ),
    );
}

/// Writing to a string cannot fail.
fn put(svg: &mut String, piece: std::fmt::Arguments<'_>) {
    let _ = svg.write_fmt(piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |parts: &[f64]| Bar { name: "n".into(), label: "l".into(), parts: parts.to_vec() };
        let svg = bars(&[bar(&[25.0, 75.0]), bar(&[50.0])], 100.0, &["a", "b"]);
        for width in ["width=\"135.0\"", "width=\"405.0\"", "width=\"270.0\""] {
            assert!(svg.contains(width), "{width} in {svg}");
        }
    }

    #[test]
    fn lines_stay_within_their_axes() {
        let axis = |most| Axis { name: "a", most, show: |value| format!("{value}") };
        let line = Line { name: "n".into(), points: vec![(0.0, 0.0), (5.0, 1.0), (20.0, 9.0)] };
        let svg = lines(&[line], &axis(10.0), &axis(1.0), true);
        assert!(svg.contains("points=\"70.0,288.0 475.0,28.0 880.0,28.0\""), "{svg}");
    }
}
