# What CI runs.
verify:
    .ci/run

# All tests; `just test -p semel` for one crate.
test *args:
    ./test {{args}}

# Formats, and applies what lints can mend.
fix:
    cargo fmt --all
    cargo clippy --workspace --all-targets --all-features --fix --allow-dirty

bench topic="all":
    cargo run --release --manifest-path bench/Cargo.toml -- {{topic}}
