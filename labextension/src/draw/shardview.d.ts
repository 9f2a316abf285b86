/** jaxcluster/static/shardview.js, which the build copies next to this: one file for every place. */

/** A document of views/document.py. */
export type Document = object;

/** {op: 'stats' | 'peek' | 'check' | 'look', name, ...}, answered by the ranks. */
export type Question = { op: string; [key: string]: unknown };
export type Ask = (question: Question) => Promise<unknown>;

export function draw(
  el: HTMLElement,
  doc: Document,
  options?: { ask?: Ask | null }
): HTMLElement;

/** The colour and the glyph that stand for a rank everywhere. */
export function color(rank: number): string;
export function glyph(rank: number): string;
/** Black or white, whichever reads better on a colour. */
export function ink(hex: string): string;
/** 1536 -> '1.5 KiB'. */
export function bytes(size: number): string;
/** [0, 1, 2, 5] -> 'ranks 0-2,5'. */
export function ranksText(ranks: number[]): string;

export const COLORS: readonly string[];
export const GLYPHS: string;
export const CSS: string;
