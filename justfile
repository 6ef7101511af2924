# What CI runs.
verify:
    .ci/run

# All tests; `just test -p semel` for one crate.
test *args:
    ./test {{args}}

# What needs no server: core, middleware, SQLite and the embedded store, gateway, offsets, the suite.
fast *args:
    cargo nextest run --profile fast -p semel -p semel-tower -p semel-events -p semel-stores -p semel-gateway -p trading \
        --features semel/conformance,semel/json,semel-tower/axum,semel-events/kafka,semel-stores/file,semel-stores/sqlite {{args}}

# Formats, and applies what lints can mend.
fix:
    cargo fmt --all
    cargo clippy --workspace --all-targets --all-features --fix --allow-dirty

bench topic="all":
    cargo run --release --manifest-path bench/Cargo.toml -- {{topic}}
