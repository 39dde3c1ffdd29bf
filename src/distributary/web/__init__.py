"""The dashboard: a page over one lake, with everything it shows as JSON under `/api/`."""
