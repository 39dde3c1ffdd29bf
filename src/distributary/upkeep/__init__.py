"""What keeps tables small and quick while pipelines write to them: no row is ever changed."""
