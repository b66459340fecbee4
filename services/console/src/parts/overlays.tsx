/** What opens over a page, in a chunk of its own: it is fetched when the page rests. */
export { default as Keys } from "./Keys.tsx";
export { default as Palette } from "./Palette.tsx";
