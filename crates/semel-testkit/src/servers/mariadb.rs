//! MariaDB.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use tempfile::TempDir;

use super::node::{Node, Ready};
use super::{Server, guarded, port, template};

/// A MariaDB of one's own: data synced at every commit.
#[derive(Debug)]
pub struct MariaDb {
    node: Node,
    _folder: TempDir,
}

const INIT: &str = "CREATE DATABASE IF NOT EXISTS semel;\n\
    CREATE USER IF NOT EXISTS semel@'%' IDENTIFIED BY 'semel';\n\
    GRANT ALL ON *.* TO semel@'%' WITH GRANT OPTION;\n";

impl MariaDb {
    /// Starts one with these settings (`name=value`) beside the default ones.
    ///
    /// # Errors
    /// Says what is not installed, or shows what the server printed.
    pub fn start(settings: &[&str]) -> Result<Self> {
        let folder = port::folder("mariadb")?;
        let user = String::from_utf8(guarded::run("id", &["-un".into()], None)?.stdout)?;
        let data = folder.path().join("data").display().to_string();
        let common = [
            "--no-defaults".to_owned(),
            format!("--datadir={data}"),
            format!("--user={}", user.trim()),
            // One that starts removes what others have in a folder that they share.
            format!("--tmpdir={}", folder.path().display()),
        ];
        let mut install = common.to_vec();
        install
            .extend(["--auth-root-authentication-method=normal", "--skip-test-db"].map(Into::into));
        template::make("mariadbd", Path::new(&data), || {
            guarded::run("mariadb-install-db", &install, None)?;
            Ok(())
        })?;
        let init = folder.path().join("init.sql");
        std::fs::write(&init, INIT)?;
        let port = port::free()?;
        let own = [
            format!("--port={port}"),
            format!("--socket={}", folder.path().join("socket").display()),
            format!("--init-file={}", init.display()),
            "--bind-address=127.0.0.1".into(),
            "--skip-name-resolve".into(),
            "--max-connections=400".into(),
        ];
        let check = format!("--port={port}");
        let check = [
            "--no-defaults",
            "-h127.0.0.1",
            &*check,
            "-usemel",
            "-psemel",
            "-e",
            "SELECT 1",
            "semel",
        ];
        let node = Node::new("mariadb", "mariadbd", port, folder.path())
            .args(common)
            .args(own)
            .args(settings.iter().map(|setting| format!("--{setting}")))
            .ready(Ready::Succeeds(
                "mariadb".into(),
                check.map(String::from).into(),
            ));
        node.start()?;
        Ok(Self {
            node,
            _folder: folder,
        })
    }
}

impl Server for MariaDb {
    fn url(&self) -> String {
        self.url_through(self.address())
    }

    fn url_through(&self, address: SocketAddr) -> String {
        format!("mysql://semel:semel@{address}/semel")
    }

    fn nodes(&self) -> Vec<&Node> {
        vec![&self.node]
    }
}
