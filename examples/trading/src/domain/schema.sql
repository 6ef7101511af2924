-- Money is in cents. The checks are the last line: the rules are in the code above them.

-- What outlives its accounts: a reset replaces the account of a portfolio.
CREATE TABLE IF NOT EXISTS portfolios (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    owner     TEXT NOT NULL,
    -- How many challenges were started, and with how much the latest began.
    challenges     INTEGER NOT NULL DEFAULT 0,
    challenge_from INTEGER
) STRICT;

CREATE TABLE IF NOT EXISTS accounts (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    portfolio   INTEGER NOT NULL REFERENCES portfolios (id),
    cash        INTEGER NOT NULL CHECK (cash >= 0),
    replaced_by INTEGER REFERENCES accounts (id)
) STRICT;

-- A portfolio has one account at a time.
CREATE UNIQUE INDEX IF NOT EXISTS present ON accounts (portfolio) WHERE replaced_by IS NULL;

CREATE TABLE IF NOT EXISTS positions (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    account  INTEGER NOT NULL REFERENCES accounts (id),
    symbol   TEXT NOT NULL REFERENCES quotes (symbol),
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    cost     INTEGER NOT NULL CHECK (cost > 0),
    -- None while it is open.
    proceeds INTEGER CHECK (proceeds >= 0)
) STRICT;

CREATE TABLE IF NOT EXISTS quotes (
    symbol TEXT PRIMARY KEY,
    cents  INTEGER NOT NULL CHECK (cents > 0)
) STRICT;

INSERT OR IGNORE INTO quotes VALUES ('ACME', 12500), ('GLOBEX', 4200), ('INITECH', 990);
