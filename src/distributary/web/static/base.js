// Where this page begins: a dashboard of several lakes serves each of the others below /lakes/NAME.

const BELOW = /^\/lakes\/[^/]+(?=\/|$)/;

export const base = BELOW.exec(location.pathname)?.[0] || "";

// the address of the page, as if it had one lake
export function place() {
  return location.pathname.slice(base.length) || "/";
}

// what a link of this lake leads to; nothing for one of another lake
export function own(address) {
  if (base && address !== base && !address.startsWith(`${base}/`)) return null;
  const rest = address.slice(base.length) || "/";
  return !base && BELOW.test(rest) ? null : rest;
}
