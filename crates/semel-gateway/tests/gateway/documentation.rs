//! `docs/gateway.md` says what the program says.

use semel_gateway::args::SETTINGS;

const DOCUMENT: &str = include_str!("../../../../docs/gateway.md");

#[test]
fn every_setting_is_described_as_it_is() {
    let rows: Vec<Vec<&str>> = DOCUMENT
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .map(|line| {
            line.split(" | ")
                .map(|cell| cell.trim_matches(['|', ' ']))
                .collect()
        })
        .collect();
    let described: Vec<[&str; 3]> = rows.iter().map(|row| [row[0], row[1], row[2]]).collect();
    let expected: Vec<[String; 3]> = SETTINGS
        .iter()
        .map(|setting| {
            let flag = match setting.value {
                Some(value) => format!("`--{} {}`", setting.name, value.replace('|', "\\|")),
                None => format!("`--{}`", setting.name),
            };
            let default = setting.default.map_or("–".to_owned(), |d| format!("`{d}`"));
            [flag, format!("`{}`", setting.variable()), default]
        })
        .collect();
    let expected: Vec<[&str; 3]> = expected
        .iter()
        .map(|[flag, variable, default]| [flag.as_str(), variable.as_str(), default.as_str()])
        .collect();
    assert_eq!(described, expected);
}

#[test]
fn the_help_names_every_setting() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["serve", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for setting in &SETTINGS {
        assert!(
            help.contains(&format!("--{}", setting.name)),
            "{}",
            setting.name
        );
        assert!(help.contains(&setting.variable()), "{}", setting.name);
    }
    let flags = help.matches("      --").count();
    assert_eq!(flags, SETTINGS.len(), "{help}");
}
