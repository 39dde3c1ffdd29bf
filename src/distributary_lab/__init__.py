"""The lab: simulators, a broker and a registry, and the demo. The core does not know it."""
