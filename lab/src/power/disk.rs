//! A disk whose power can be cut: an ext4 file system in a file. What the system has not written out
//! is in its memory and not in the file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// A disk that is mounted at `place` until it is dropped.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    place: PathBuf,
    image: PathBuf,
    cuts: usize,
}

const SIZE: u64 = 2 << 30;
const NEEDS: &str = "an image cannot be mounted here: power-loss needs root, loop devices, and the \
                     programs mkfs.ext4 and mount";

impl Disk {
    /// Makes one whose image is in `folder`, and mounts it at `place`.
    pub(super) fn mount(folder: &Path, place: &Path) -> Result<Self> {
        let image = folder.join("disk-0");
        std::fs::File::create(&image)?.set_len(SIZE)?;
        // Without the thread that writes inode tables later: only the store writes.
        let tables = "lazy_itable_init=1,lazy_journal_init=1";
        let mut make = Command::new("mkfs.ext4");
        run(make.args(["-q", "-F", "-E", tables]).arg(&image)).context(NEEDS)?;
        std::fs::create_dir_all(place)?;
        attach(&image, place).context(NEEDS)?;
        Ok(Self {
            folder: folder.into(),
            place: place.into(),
            image,
            cuts: 0,
        })
    }

    /// Writes everything out: what is there now is there after any loss of power.
    pub(super) fn sync(&self) -> Result<()> {
        run(Command::new("sync").arg("-f").arg(&self.place))
    }

    /// Takes the image as it is. Who writes to the disk must stand still.
    ///
    /// Where the system wrote something out meanwhile, the image would be of no one instant: it is
    /// taken again.
    pub(super) fn cut(&mut self) -> Result<PathBuf> {
        self.cuts += 1;
        let copy = self.folder.join(format!("disk-{}", self.cuts));
        for _ in 0..20 {
            let before = self.written()?;
            run(Command::new("cp")
                .arg("--sparse=always")
                .args([&self.image, &copy]))?;
            if before.in_flight == 0 && self.written()? == before {
                return Ok(copy);
            }
        }
        bail!("the system does not stop writing to the disk")
    }

    /// Goes on with this image, at the same place. What was only in memory is gone.
    pub(super) fn restore(&mut self, image: PathBuf) -> Result<()> {
        self.unmount()?;
        std::fs::remove_file(&self.image)?;
        attach(&image, &self.place)?;
        self.image = image;
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            match run(Command::new("umount").arg(&self.place)) {
                // Processes that were killed are still going.
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
                ended => return ended,
            }
        }
    }

    fn written(&self) -> Result<Written> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let place = self.place.display().to_string();
        let device = mounts
            .lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(_, rest)| rest.split(' ').next() == Some(&*place))
            .and_then(|(device, _)| device.strip_prefix("/dev/"))
            .context("the disk is not mounted")?;
        let counts = std::fs::read_to_string(format!("/sys/block/{device}/stat"))?;
        let count = |place| {
            let found: Option<u64> = counts.split_whitespace().nth(place)?.parse().ok();
            found
        };
        let written = || {
            Some(Written {
                writes: count(4)?,
                in_flight: count(8)?,
            })
        };
        written().context("the device does not count its writes")
    }
}

/// What a device has been asked to write.
#[derive(Debug, PartialEq, Eq)]
struct Written {
    writes: u64,
    in_flight: u64,
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Not busy any more, or gone with this process's name space.
        let lazily = Command::new("umount").arg("-l").arg(&self.place).output();
        drop(lazily);
    }
}

fn attach(image: &Path, place: &Path) -> Result<()> {
    let mut mount = Command::new("mount");
    run(mount
        .args(["-o", "loop,noinit_itable"])
        .args([image, place]))
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed ({}): {}", output.status, printed.trim());
    }
    Ok(())
}
