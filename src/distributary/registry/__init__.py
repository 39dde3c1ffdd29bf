"""Where schemas come from: registries, compiling, compatibility and wire framing."""
