CREATE TABLE inventory (
    sku   text PRIMARY KEY,
    stock integer NOT NULL CHECK (stock >= 0),
    price integer NOT NULL CHECK (price >= 0)
);

CREATE TABLE orders (
    id         text PRIMARY KEY,
    state      text NOT NULL CHECK (state IN ('pending', 'paid', 'refused')),
    -- Of a paid order the payment's number, of a refused one why.
    detail     text CHECK ((detail IS NULL) = (state = 'pending')),
    card       text NOT NULL,
    total      bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX orders_pending ON orders (created_at) WHERE state = 'pending';

CREATE TABLE items (
    order_id text NOT NULL REFERENCES orders,
    sku      text NOT NULL REFERENCES inventory,
    quantity integer NOT NULL CHECK (quantity > 0),
    PRIMARY KEY (order_id, sku)
);
