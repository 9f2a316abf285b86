/** The ranks that were at a line of a cell, as a mark at the end of that line in its editor. */

import type { Cell } from '@jupyterlab/cells';
import type { CodeMirrorEditor } from '@jupyterlab/codemirror';
import { RangeSetBuilder, StateEffect, StateField, type Extension } from '@codemirror/state';
import { Decoration, EditorView, WidgetType, type DecorationSet } from '@codemirror/view';
import { color, ink, ranksText } from '../draw/shardview';
import type { IPlace } from '../protocol';
import { glyphOf, type Tone, type Trans } from './labels';

/** More ranks than these are a range, in no colour. */
const MOST_CHIPS = 8;

const LOOKS: Record<IPlace['what'], [glyph: string, tone: Tone]> = {
  waited: [glyphOf('waiting'), 'waiting'],
  launched: [glyphOf('running'), 'waiting'],
  differs: [glyphOf('diverged'), 'bad'],
  died: [glyphOf('dead'), 'bad'],
  was: ['·', 'calm']
};

/** What a mark says to whoever does not see its colour. */
export function placeText({ ranks, what }: IPlace, trans: Trans): string {
  const text = ranksText(ranks);
  switch (what) {
    case 'waited':
      return trans._n('rank %2 waited here', 'ranks %2 waited here', ranks.length, text);
    case 'differs':
      return trans._n('rank %2 went another way here', 'ranks %2 went another way here', ranks.length, text);
    case 'launched':
      return trans._n('rank %2 launched its program here', 'ranks %2 launched their program here', ranks.length, text);
    case 'died':
      return trans._n('rank %2 was last seen here', 'ranks %2 were last seen here', ranks.length, text);
    case 'was':
      return trans._n('rank %2 was here then', 'ranks %2 were here then', ranks.length, text);
  }
}

/** A rank in its colour, as the shard views have it. */
function chip(rank: number): HTMLElement {
  const node = document.createElement('span');
  node.className = 'jxl-rankChip';
  node.style.background = color(rank);
  node.style.color = ink(color(rank));
  node.textContent = String(rank);
  return node;
}

class Mark extends WidgetType {
  constructor(
    private readonly place: IPlace,
    private readonly text: string
  ) {
    super();
  }

  override eq(other: Mark): boolean {
    return other.text === this.text;
  }

  override toDOM(): HTMLElement {
    const [glyph, tone] = LOOKS[this.place.what];
    const node = document.createElement('span');
    node.className = 'jxl-lineMark';
    node.dataset.tone = tone;
    node.title = this.text;
    node.setAttribute('role', 'img');
    node.setAttribute('aria-label', this.text);
    const { ranks } = this.place;
    node.append(glyph, ...(ranks.length > MOST_CHIPS ? [` ${ranksText(ranks)}`] : ranks.map(chip)));
    return node;
  }
}

interface IShown {
  places: readonly IPlace[];
  trans: Trans;
}

const showPlaces = StateEffect.define<IShown>();

const shownPlaces = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, transaction) {
    // With the line goes its mark: what is typed elsewhere moves it.
    let found = transaction.docChanged ? marks.map(transaction.changes) : marks;
    for (const effect of transaction.effects) {
      if (effect.is(showPlaces)) {
        found = decorations(effect.value, transaction.state.doc);
      }
    }
    return found;
  },
  provide: field => EditorView.decorations.from(field)
});

function decorations({ places, trans }: IShown, doc: EditorView['state']['doc']): DecorationSet {
  const builder = new RangeSetBuilder<Decoration>();
  const lines = new Map<number, IPlace[]>();
  for (const place of places) {
    if (place.line >= 1 && place.line <= doc.lines) {
      lines.set(place.line, [...(lines.get(place.line) ?? []), place]);
    }
  }
  for (const number of [...lines.keys()].sort((a, b) => a - b)) {
    const { from, to } = doc.line(number);
    const own = lines.get(number)!;
    const tone = own.some(({ what }) => LOOKS[what][1] === 'bad') ? 'bad' : LOOKS[own[0].what][1];
    const attributes = { 'data-tone': tone };
    builder.add(from, from, Decoration.line({ class: 'jxl-markedLine', attributes }));
    for (const place of own) {
      const widget = new Mark(place, placeText(place, trans));
      builder.add(to, to, Decoration.widget({ widget, side: 1 }));
    }
  }
  return builder.finish();
}

const having = new WeakSet<EditorView>();

/** Show these places in a cell's editor, and no others; none where it has none. */
export function markLines(cell: Cell, places: readonly IPlace[], trans: Trans): void {
  const editor = cell.editor as CodeMirrorEditor | null;
  const view = editor?.editor;
  if (!editor || !(view as Partial<EditorView> | undefined)?.dispatch) {
    return; // it is out of sight, or of another kind
  }
  if (!having.has(view!)) {
    if (!places.length) {
      return;
    }
    editor.injectExtension(shownPlaces as Extension);
    having.add(view!);
  }
  view!.dispatch({ effects: showPlaces.of({ places, trans }) });
}

/** Bring a line of a cell into view, and the cursor to it. */
export function goToLine(cell: Cell, line: number): void {
  const editor = cell.editor;
  if (editor) {
    const at = { line: Math.max(0, Math.min(line, editor.lineCount) - 1), column: 0 };
    editor.setCursorPosition(at);
    editor.revealPosition(at);
    editor.focus();
  }
}
