//! `--html FILE` of `inspect`, `plan` and `bench`: the report as one page that refers to nothing else: its text, and plots of its numbers.
//!
//! The plots are drawn here, as SVG, so that the page needs no script. Each has its numbers as text too.

use std::fmt::{self, Write as _};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::cli::out::{Failure, Outcome};
use crate::store::path_at_home;
use crate::{Error, Result};

/// Most bars of a plot; more are left out, and the plot says so.
const BARS: usize = 64;
/// Width of a plot in its own units, and of the part that labels take.
const WIDTH: f64 = 900.0;
const LABEL: f64 = 200.0;
/// Height of a bar with its gap, and of a plot of columns.
const ROW: f64 = 20.0;
const COLUMNS: f64 = 160.0;

/// The beginning of every page.
const BEGINS: &str = "<!doctype html>";

const STYLE: &str = "
:root { color-scheme: light dark; --bg: #fff; --ink: #1a1d21; --dim: #565d66; --line: #d9dde3; --a: #0b6bb8; --b: #9aa3ad; --c: #0f8a67; }
@media (prefers-color-scheme: dark) { :root { --bg: #16191d; --ink: #e8eaed; --dim: #a4acb6; --line: #353b43; --a: #4aa3e8; --b: #626b75;
  --c: #3fae86; } }
body { background: var(--bg); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 1.6rem 0 .2rem; } p { color: var(--dim); margin: .1rem 0 .4rem; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; } text { fill: var(--ink); }
.a { fill: var(--a); } .b { fill: var(--b); } .c { fill: var(--c); } line { stroke: var(--line); }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .8rem; }
";

/// The option of the verbs that write a page.
#[derive(Debug, Clone, Parser)]
pub(crate) struct HtmlArgs {
    /// Also write the report with plots to this file: one page that refers to nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
}

impl HtmlArgs {
    /// Refuses a page that is wanted of what has no numbers to draw.
    #[cfg(feature = "flight")]
    pub(crate) fn refuse(&self, what: &str) -> Result<()> {
        match self.html {
            Some(_) => Err(Error::config("html", format!("there is no page of {what}; leave --html out"))),
            None => Ok(()),
        }
    }

    /// Writes the page of a report, if one is wanted.
    pub(crate) fn write(&self, title: &str, plots: impl FnOnce() -> Vec<Plot>, report: &impl fmt::Display) -> Outcome {
        self.check()?;
        let Some(path) = self.path() else { return Ok(()) };
        let page = Page { title, plots: plots(), text: report.to_string() }.to_string();
        std::fs::write(&path, page).map_err(|error| Failure::File(path.clone(), error))
    }

    /// Refuses a file that holds something else, before the work that it is to show.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub(crate) fn check(&self) -> Result<()> {
        match self.path().filter(|path| holds_something_else(path)) {
            Some(path) => {
                let problem = "is there and is no page; name another file, or remove it";
                Err(Error::config("html", format!("{} {problem}", path.display())))
            }
            None => Ok(()),
        }
    }

    fn path(&self) -> Option<PathBuf> {
        self.html.as_deref().map(|path| path_at_home(path.as_ref()))
    }
}

/// Returns true for a file with content that is no page: a part of the dataset, say.
fn holds_something_else(path: &Path) -> bool {
    let mut head = Vec::new();
    // Pipes and devices are not read.
    let file = std::fs::metadata(path).is_ok_and(|about| about.is_file()).then(|| std::fs::File::open(path));
    let Some(Ok(file)) = file else { return false };
    file.take(BEGINS.len() as u64).read_to_end(&mut head).is_ok() && !head.is_empty() && head != BEGINS.as_bytes()
}

/// One drawing.
#[derive(Debug)]
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    /// What is drawn, in a sentence.
    pub(crate) note: String,
    pub(crate) kind: PlotKind,
}

/// The form of a drawing.
#[derive(Debug)]
pub(crate) enum PlotKind {
    /// Bars with a label, the value and the value as text.
    Bars(Vec<(String, f64, String)>),
    /// Bars of parts with a label: the value of each part and its text. The names of the parts come first.
    Stacks(Vec<&'static str>, Vec<(String, Vec<(f64, String)>)>),
    /// Columns side by side, with the text of the least and the largest place and the largest value.
    Columns(Vec<f64>, [String; 3]),
}

struct Page<'a> {
    title: &'a str,
    plots: Vec<Plot>,
    text: String,
}

/// A text as HTML shows it.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The only style is this one, and there is no script.
        let policy = "default-src 'none'; style-src 'unsafe-inline'";
        write!(
            f,
            "{BEGINS}\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{0}</title>\n<style>{STYLE}</style></head>\n<body><main><h1>{0}</h1>\n\
             <p>bowstring {1}</p>\n",
            Escaped(self.title),
            env!("CARGO_PKG_VERSION")
        )?;
        for plot in &self.plots {
            let note = Escaped(&plot.note);
            writeln!(f, "<section><h2>{}</h2><p>{note}</p>", Escaped(plot.title))?;
            plot.draw(f)?;
            writeln!(f, "</section>")?;
        }
        writeln!(f, "<section><h2>The report</h2><pre>{}</pre></section>\n</main></body></html>", Escaped(&self.text))
    }
}

/// A share of the whole, from 0 to 1; 0 for what is no number.
fn share(value: f64, most: f64) -> f64 {
    if value.is_finite() && value > 0.0 && most > 0.0 { (value / most).min(1.0) } else { 0.0 }
}

impl Plot {
    fn draw(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = Escaped(self.title);
        match &self.kind {
            PlotKind::Bars(bars) => {
                let most = bars.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
                let rows = bars.iter().map(|(label, value, text)| (label.as_str(), vec![(*value, "a")], text.as_str()));
                draw_rows(f, &label, rows, bars.len(), most)
            }
            PlotKind::Stacks(names, stacks) => {
                let classes = ["a", "b", "c"];
                let sum = |parts: &[(f64, String)]| parts.iter().map(|(value, _)| *value).sum::<f64>();
                let most = stacks.iter().map(|(_, parts)| sum(parts)).fold(0.0, f64::max);
                for (name, class) in names.iter().zip(classes) {
                    write!(
                        f,
                        "<svg viewBox=\"0 0 12 12\" style=\"width:12px;height:12px\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"12\" height=\"12\"/></svg> {} &#160; ",
                        Escaped(name)
                    )?;
                }
                let texts: Vec<String> = stacks
                    .iter()
                    .map(|(_, parts)| {
                        parts
                            .iter()
                            .map(|(_, text)| text.as_str())
                            .filter(|text| !text.is_empty())
                            .collect::<Vec<_>>()
                            .join(", ")
                    })
                    .collect();
                let rows = stacks.iter().zip(&texts).map(|((label, parts), text)| {
                    let parts = parts.iter().zip(classes).map(|((value, _), class)| (*value, class)).collect();
                    (label.as_str(), parts, text.as_str())
                });
                draw_rows(f, &label, rows, stacks.len(), most)
            }
            PlotKind::Columns(values, [first, last, largest]) => {
                let most = values.iter().copied().fold(0.0, f64::max);
                let (below, height) = (COLUMNS + 18.0, COLUMNS + 24.0);
                writeln!(
                    f,
                    "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}: at most {}\">",
                    Escaped(largest)
                )?;
                let each = WIDTH / values.len().max(1) as f64;
                for (at, value) in values.iter().enumerate() {
                    let tall = share(*value, most) * (COLUMNS - 14.0);
                    let (x, y, wide) = (at as f64 * each, COLUMNS - tall, (each - 1.0).max(each * 0.8));
                    writeln!(
                        f,
                        "<rect class=\"a\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{tall:.1}\"/>"
                    )?;
                }
                writeln!(
                    f,
                    "<line x1=\"0\" x2=\"{WIDTH}\" y1=\"{COLUMNS}\" y2=\"{COLUMNS}\"/><text x=\"0\" y=\"10\">{}</text>\
                     <text x=\"0\" y=\"{below}\">{}</text><text x=\"{WIDTH}\" y=\"{below}\" text-anchor=\"end\">{}</text></svg>",
                    Escaped(largest),
                    Escaped(first),
                    Escaped(last)
                )
            }
        }
    }
}

/// Draws a bar for each row, of parts of a value and a class.
fn draw_rows<'a>(
    f: &mut fmt::Formatter<'_>,
    label: &Escaped<'_>,
    rows: impl Iterator<Item = (&'a str, Vec<(f64, &'static str)>, &'a str)>,
    all: usize,
    most: f64,
) -> fmt::Result {
    let shown = all.min(BARS);
    let height = ROW * shown.max(1) as f64;
    writeln!(f, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">")?;
    // Room for texts behind the longest bar.
    let room = WIDTH - LABEL - 200.0;
    for (at, (name, parts, text)) in rows.take(shown).enumerate() {
        let (top, middle) = (at as f64 * ROW, at as f64 * ROW + 13.0);
        let short: String = name.chars().take(30).collect();
        let anchor = LABEL - 8.0;
        writeln!(f, "<text x=\"{anchor}\" y=\"{middle}\" text-anchor=\"end\">{}</text>", Escaped(&short))?;
        let mut x = LABEL;
        for (value, class) in parts {
            let wide = share(value, most) * room;
            writeln!(
                f,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"{}\"/>",
                ROW - 4.0
            )?;
            x += wide;
        }
        writeln!(f, "<text x=\"{:.1}\" y=\"{middle}\">{}</text>", x + 6.0, Escaped(text))?;
    }
    writeln!(f, "</svg>")?;
    if all > shown { writeln!(f, "<p>and {} more, not drawn</p>", all - shown) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(kind: PlotKind) -> String {
        let plots = vec![Plot { title: "Sizes", note: "a <b> & c".to_owned(), kind }];
        Page { title: "x<script>", plots, text: "1 < 2".to_owned() }.to_string()
    }

    #[test]
    fn a_page_is_whole_and_refers_to_nothing() {
        let bars = (0..100).map(|at| (format!("<i>{at}"), f64::from(at), format!("{at} B"))).collect();
        let text = page(PlotKind::Bars(bars));
        assert!(text.starts_with(BEGINS) && text.trim_end().ends_with("</html>"));
        assert_eq!((text.matches("<rect").count(), text.contains("and 36 more")), (BARS, true));
        for never in ["<script", "<i>", "http:", "https:", "src=", "url(", "@import", "NaN", "inf\""] {
            assert!(!text.contains(never), "{never}: {text}");
        }
        assert!(text.contains("x&lt;script&gt;") && text.contains("1 &lt; 2") && text.contains("a &lt;b&gt; &amp; c"));
    }

    #[test]
    fn a_page_replaces_a_page_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let write = |html: String| HtmlArgs { html: Some(html) }.write("x", Vec::new, &"text");
        let rows = at("part-0.parquet");
        std::fs::write(&rows, "PAR1 and rows").unwrap();
        assert!(write(rows.clone()).is_err() && HtmlArgs { html: Some(rows.clone()) }.check().is_err());
        assert_eq!(std::fs::read(&rows).unwrap(), b"PAR1 and rows");
        std::fs::write(at("empty"), "").unwrap();
        assert!([at("new"), at("new"), at("empty")].into_iter().all(|html| write(html).is_ok()));
    }

    #[test]
    fn no_value_breaks_a_drawing() {
        for values in [vec![], vec![0.0], vec![f64::NAN, f64::INFINITY, -1.0, 1.0], vec![1.0; 1000]] {
            let bars = values.iter().map(|value| ("x".to_owned(), *value, String::new())).collect();
            let stack = values.iter().take(3).map(|value| (*value, "y".to_owned())).collect();
            let ends = ["a", "b", "c"].map(str::to_owned);
            for kind in [
                PlotKind::Bars(bars),
                PlotKind::Stacks(vec!["one", "two"], vec![("x".to_owned(), stack)]),
                PlotKind::Columns(values.clone(), ends),
            ] {
                let text = page(kind);
                assert!(
                    !text.contains("NaN") && !text.contains("\"inf") && !text.contains("=\"-"),
                    "{values:?}: {text}"
                );
                assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
            }
        }
    }
}
