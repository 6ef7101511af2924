//! Passes on what a command writes while it runs, and keeps it for replays as long as it is not too much.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::ioctl_fionread;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;
use tokio::task::{JoinHandle, block_in_place};

use super::kept::Output;

/// As much as a pipe holds unless somebody made it larger.
const CHUNK: usize = 64 << 10;

/// Both streams on their way.
pub(super) struct Copying {
    streams: [JoinHandle<Option<Vec<u8>>>; 2],
    cut: watch::Sender<bool>,
}

impl Copying {
    /// Begins to pass on both pipes, and keeps at most so many bytes of both together.
    pub(super) fn start(stdout: OwnedFd, stderr: OwnedFd, most: usize) -> Self {
        let (cut, is_cut) = watch::channel(false);
        let room = Arc::new(Room {
            most,
            taken: AtomicUsize::new(0),
        });
        let copies = [
            Copy::new(&room, is_cut.clone(), io::stdout()).run(stdout),
            Copy::new(&room, is_cut, io::stderr()).run(stderr),
        ];
        let streams = copies.map(tokio::spawn);
        Self { streams, cut }
    }

    /// Returns once nobody can write any more.
    pub(super) async fn closed(&self) {
        self.cut.closed().await;
    }

    /// Takes what is there, waits for no more, and gives what was kept; none if it was too much.
    pub(super) async fn end(self) -> Option<Output> {
        self.cut.send_replace(true);
        let [stdout, stderr] = self.streams;
        let (stdout, stderr) = (stdout.await.ok()?, stderr.await.ok()?);
        Some(Output {
            stdout: stdout?,
            stderr: stderr?,
        })
    }
}

/// How much both streams may take, and did.
struct Room {
    most: usize,
    taken: AtomicUsize,
}

/// One stream.
struct Copy {
    room: Arc<Room>,
    cut: watch::Receiver<bool>,
    /// None: nobody reads it any more.
    to: Option<Box<dyn Write + Send>>,
    /// None: it is too much.
    kept: Option<Vec<u8>>,
}

impl Copy {
    fn new(room: &Arc<Room>, cut: watch::Receiver<bool>, to: impl Write + Send + 'static) -> Self {
        Self {
            room: Arc::clone(room),
            cut,
            to: Some(Box::new(to)),
            kept: Some(Vec::new()),
        }
    }

    async fn run(mut self, from: OwnedFd) -> Option<Vec<u8>> {
        let mut from = Receiver::from_owned_fd(from).ok()?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = tokio::select! {
                biased;
                _ = self.cut.wait_for(|is_cut| *is_cut) => break,
                read = from.read(&mut chunk) => read.ok()?,
            };
            if read == 0 {
                break;
            }
            self.take(&chunk[..read]);
        }
        // What was written until now, and not what somebody goes on writing.
        let mut left = ioctl_fionread(&from).unwrap_or(0);
        while left > 0 {
            match from.try_read(&mut chunk) {
                Ok(0) | Err(_) => break,
                Ok(read) => self.take(&chunk[..read]),
            }
            left = left.saturating_sub(CHUNK as u64);
        }
        // The other stream may have taken the room meanwhile.
        self.kept.filter(|_| self.room.fits(0))
    }

    fn take(&mut self, bytes: &[u8]) {
        let fits = self.room.fits(bytes.len());
        self.kept = self.kept.take().filter(|_| fits);
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(bytes);
        }
        // A reader who went away does not stop the command, and one who pauses makes it wait.
        let Some(to) = &mut self.to else { return };
        if block_in_place(|| to.write_all(bytes).and_then(|()| to.flush())).is_err() {
            self.to = None;
        }
    }
}

impl Room {
    /// Takes so many bytes; whether there was room for all so far.
    fn fits(&self, bytes: usize) -> bool {
        self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.most
    }
}
