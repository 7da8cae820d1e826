//! What a person or a program reads: plain aligned tables, or JSON. A reader that goes away is no error.

use std::io::{self, ErrorKind, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use training_gym::external::serde_json::Value;

/// Writes one line, and flushes it: a log that is followed is read as it comes.
///
/// # Errors
/// When standard output cannot be written. That its reader has gone ends the program, quietly and well.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

/// Writes a document.
pub(crate) fn json(value: &Value) -> Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Writes rows below a head, each column as wide as its widest cell.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let show = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    line(&show(head.to_vec()))?;
    for row in rows {
        line(&show(row.iter().map(String::as_str).collect()))?;
    }
    Ok(())
}

/// How long ago, from Unix seconds; `-` for a time that is not known.
pub(crate) fn ago(at: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let seconds = (now - at).max(0.0) as u64;
    match seconds {
        _ if at <= 0.0 => "-".to_owned(),
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Bytes.
pub(crate) fn size(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else { return "-".to_owned() };
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, bits)| bytes >> bits > 0) {
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << bits) as f64),
        None => format!("{bytes} B"),
    }
}
