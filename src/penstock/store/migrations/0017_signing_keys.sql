-- The keys of tokens that the program signs itself.

-- A row is a pair of keys: `public` is a JSON Web Key, `secret` a JSON object with the private key, encrypted if the program has a
-- codec. The newest one signs. The first token's transaction inserts a row, and administrators insert and delete rows.
create table penstock.signing_key (
    id text collate "C" primary key,
    created_at timestamptz not null,
    public text not null,
    secret text not null
);
