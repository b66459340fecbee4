-- +goose Up

-- Presets of a workspace, beside the ones that ship with the product. One with the name of a
-- shipped preset takes its place.
CREATE TABLE presets (
    workspace_id      uuid NOT NULL,
    name              text NOT NULL,
    -- parts of the system prompt, in order
    prompt            text[] NOT NULL,
    max_steps         integer NOT NULL,
    -- of one model call; 0 leaves it to the provider
    max_output_tokens integer NOT NULL DEFAULT 0,
    -- names, or prefixes that end in *
    tools             text[] NOT NULL,
    updated_by        uuid NOT NULL,
    updated_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, name)
);
ALTER TABLE presets ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON presets USING (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE presets;
