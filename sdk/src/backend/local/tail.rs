//! Reading a log while it grows.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use futures::stream::{self, Stream};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::record::{self, Folder};
use crate::backend::Error;

/// How often a log that has no news is looked at.
const PAUSE: Duration = Duration::from_millis(100);
const BLOCK: usize = 64 << 10;

/// The log's lines from byte `offset` on.
pub(super) fn lines(folder: Folder, offset: u64, follow: bool) -> impl Stream<Item = Result<String, Error>> + Send {
    let reader = Reader { folder, offset, follow, rest: Vec::new(), ready: VecDeque::new(), end: End::Open };
    stream::unfold(reader, |mut reader| async move {
        let next = reader.next().await.transpose()?;
        Some((next, reader))
    })
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    /// More may come.
    Open,
    /// The job is over: what is there now is all.
    Last,
    /// All has been read.
    Read,
}

struct Reader {
    folder: Folder,
    offset: u64,
    follow: bool,
    /// The beginning of a line whose end has not come.
    rest: Vec<u8>,
    ready: VecDeque<String>,
    end: End,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<String>, Error> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Ok(Some(line));
            }
            if self.end == End::Read {
                return Ok(None);
            }
            let news = self.read_block().await.inspect_err(|_| self.end = End::Read)?;
            if news {
                continue;
            }
            if !self.follow || self.end == End::Last {
                self.finish();
            } else if self.over()? {
                self.end = End::Last;
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn over(&self) -> Result<bool, Error> {
        Ok(self.folder.job()?.is_none_or(|job| !job.state.is_live()))
    }

    async fn read_block(&mut self) -> Result<bool, Error> {
        let path = self.folder.file("log");
        let mut file = match tokio::fs::File::open(&path).await {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(record::io("read", &path)(error)),
        };
        let mut block = vec![0; BLOCK];
        let read = async {
            file.seek(std::io::SeekFrom::Start(self.offset)).await?;
            file.read(&mut block).await
        };
        let count = read.await.map_err(record::io("read", &path))?;
        self.offset += count as u64;
        self.rest.extend_from_slice(&block[..count]);
        while let Some(at) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=at).collect();
            self.ready.push_back(text(&line[..at]));
        }
        Ok(count > 0)
    }

    /// What is left over, and what the supervisor had to say if the job is over.
    fn finish(&mut self) {
        if !self.rest.is_empty() {
            self.ready.push_back(text(&std::mem::take(&mut self.rest)));
        }
        self.ready.extend(self.folder.supervisor_lines());
        self.end = End::Read;
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
}
