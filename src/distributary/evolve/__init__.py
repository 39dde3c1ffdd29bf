"""Pure schema evolution: (table, writer schema, policy) in, (columns, fills) out. No I/O."""
