//! Output of a program nobody here wrote, line by line: whatever it prints, memory stays bounded and
//! the pipe is read to its end.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Bytes of a line that are kept.
const LONGEST_LINE: usize = 16 << 10;

/// A stream's lines.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    longest: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// The lines of a program's output, cut to 16 KiB each.
    pub(super) fn of(stream: R) -> Self {
        Self { reader: BufReader::new(stream), longest: LONGEST_LINE }
    }

    /// Lines of up to `longest` bytes.
    pub(super) fn up_to(stream: R, longest: usize) -> Self {
        Self { reader: BufReader::new(stream), longest }
    }

    /// The same stream, with lines of up to `longest` bytes from now on.
    pub(super) fn longer(self, longest: usize) -> Self {
        Self { longest, ..self }
    }

    /// What comes behind the lines that were read, as bytes.
    pub(super) fn into_reader(self) -> BufReader<R> {
        self.reader
    }

    /// The next line without its end; `None` at the end of the stream, or when it breaks. What is no
    /// UTF-8 is replaced. Dropping the future may lose the beginning of a line.
    pub(super) async fn next(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let mut began = false;
        loop {
            let chunk = match self.reader.fill_buf().await {
                Ok([]) | Err(_) => break,
                Ok(chunk) => chunk,
            };
            began = true;
            let newline = chunk.iter().position(|byte| *byte == b'\n');
            let text = &chunk[..newline.unwrap_or(chunk.len())];
            let room = self.longest - line.len();
            line.extend_from_slice(&text[..text.len().min(room)]);
            let taken = newline.map_or(chunk.len(), |at| at + 1);
            self.reader.consume(taken);
            if newline.is_some() {
                break;
            }
        }
        began.then(|| String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn anything_a_program_prints_is_lines() {
        let endless = [b'x'; 100_000];
        let text = [b"one\r\n\n\xff\xfe two\n".as_slice(), &endless, b"\nlast"].concat();
        let mut lines = Lines::of(&text[..]);
        assert_eq!(lines.next().await.as_deref(), Some("one"));
        assert_eq!(lines.next().await.as_deref(), Some(""));
        assert_eq!(lines.next().await.as_deref(), Some("\u{fffd}\u{fffd} two"));
        assert_eq!(lines.next().await.unwrap().len(), LONGEST_LINE);
        assert_eq!(lines.next().await.as_deref(), Some("last"));
        assert_eq!(lines.next().await, None);
    }
}
