//! Reports as one HTML file: text, tables and drawings in line, nothing fetched from anywhere, readable in light and in
//! dark. Colours are variables of the page, so a drawing is made once for both.

pub mod chart;

/// Text as it may stand in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A page that grows from top to bottom.
#[derive(Debug)]
pub struct Document {
    title: String,
    body: String,
}

impl Document {
    /// With a title, and a line below it.
    pub fn new(title: &str, line: &str) -> Self {
        let (title, line) = (escape(title), escape(line));
        Self { body: format!("<h1>{title}</h1>\n<p class=\"lead\">{line}</p>\n"), title }
    }

    /// Large numbers with what they are.
    pub fn tiles(&mut self, tiles: &[(String, &str)]) {
        self.body += "<div class=\"tiles\">";
        for (value, what) in tiles {
            self.body += &format!("<div><b>{}</b><span>{}</span></div>", escape(value), escape(what));
        }
        self.body += "</div>\n";
    }

    /// A heading, a drawing (or another piece of HTML), and what it shows.
    pub fn figure(&mut self, heading: &str, drawing: &str, caption: &str) {
        self.body += &format!(
            "<section><h2>{}</h2>\n{drawing}\n<p class=\"caption\">{}</p></section>\n",
            escape(heading),
            escape(caption)
        );
    }

    /// The whole file.
    pub fn finish(self) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\"><title>{}</title>\n<style>{STYLE}</style></head>\n\
             <body><main>\n{}</main></body></html>\n",
            self.title, self.body
        )
    }
}

/// A table: the first column is text, the others are numbers.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = String>| {
        let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(&cell))).collect();
        format!("<tr>{cells}</tr>")
    };
    let head = cells("th", &mut head.iter().map(|text| (*text).to_owned()));
    let rows: String = rows.iter().map(|row| cells("td", &mut row.iter().cloned()) + "\n").collect();
    format!("<div class=\"scroll\"><table><thead>{head}</thead>\n<tbody>{rows}</tbody></table></div>")
}

const STYLE: &str = "
:root { --back: #fbfbfa; --card: #ffffff; --ink: #1c2024; --soft: #60666d; --line: #dfe2e5;
  --c0: #2563a8; --c1: #d9822b; --c2: #3c8a57; --c3: #a23b72; --c4: #6b5fb5; --c5: #88857c; --c6: #0f8b8d;
  --faint: #cfd8e3; }
@media (prefers-color-scheme: dark) { :root { --back: #15181b; --card: #1d2125; --ink: #e8eaec; --soft: #a0a7ae;
  --line: #363c42; --c0: #6aa9ec; --c1: #f0a95c; --c2: #71c18d; --c3: #dd7fae; --c4: #a79df0; --c5: #b3afa4;
  --c6: #4fc4c6; --faint: #39434e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 17px; margin: 0 0 12px; }
.lead { color: var(--soft); margin: 4px 0 24px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.tiles div, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px; }
.tiles b { display: block; font-size: 22px; } .tiles span { color: var(--soft); font-size: 13px; }
section { margin-top: 16px; } .caption { color: var(--soft); font-size: 13px; margin: 12px 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 7px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg text.soft { fill: var(--soft); } svg .grid { stroke: var(--line); stroke-width: 1; }
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup_and_nothing_is_fetched() {
        let mut document = Document::new("a <b>", "x & \"y\"");
        document.tiles(&[("1".into(), "<script>")]);
        document.figure("h", &table(&["a"], &[vec!["<i>".into()]]), "c");
        let html = document.finish();
        assert!(
            html.contains("a &lt;b&gt;") && html.contains("&lt;script&gt;") && html.contains("&lt;i&gt;")
        );
        for fetched in ["http", "src=", "@import", "url(", "<link", "<script"] {
            assert!(!html.contains(fetched), "{fetched}");
        }
    }
}
