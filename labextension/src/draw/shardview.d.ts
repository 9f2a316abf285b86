/** jaxcluster/static/shardview, which the build copies next to this: the same for every place. */

import type { IQuestion } from '../protocol';

/** What is drawn: as jaxcluster/views/shards.py makes it. */
export type Document = { [key: string]: unknown; name?: string };

/** The answers come from the ranks. */
export type Ask = (question: IQuestion) => Promise<unknown>;

/** The view ends with `signal`, and when another is drawn into `el`. */
export function draw(
  el: HTMLElement,
  doc: Document,
  options?: { ask?: Ask | null; signal?: AbortSignal }
): HTMLElement;

/** The colour and the glyph that stand for a rank everywhere. */
export function color(rank: number): string;
export function glyph(rank: number): string;
/** 1536 -> '1.5 KiB'. */
export function bytes(size: number): string;
/** [0, 1, 2, 5] -> '0-2, 5'. */
export function ranksText(ranks: number[]): string;

export const COLORS: readonly string[];
export const GLYPHS: string;
