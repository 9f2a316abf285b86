/** The cluster's variables as a table, and the interactive view of the selected one beside it. */

import * as React from 'react';
import { bytes, draw, type Ask, type Document } from '../draw/shardview';
import type { IVariable } from '../protocol';
import type { Store } from '../store';
import type { Trans } from './labels';
import { Busy, Button, Failure, Middle, Roving, useKnown, useVisible } from './parts';
import { useAnswer } from './stacks';

/** What is drawn: a variable's document, or that of mesh or memory. */
type Shown = { kind: 'variable'; name: string } | { kind: 'mesh' } | { kind: 'memory' };

interface IArrays {
  store: Store;
  trans: Trans;
}

export function Arrays({ store, trans }: IArrays): JSX.Element {
  const cluster = useKnown(store)?.state?.current ?? '';
  return <Inspector key={cluster} store={store} trans={trans} />; // another one has other variables
}

/** Asks the ranks when it is looked at, and when a cell has ended. */
function Inspector({ store, trans }: IArrays): JSX.Element {
  const box = React.useRef<HTMLDivElement>(null);
  const isVisible = useVisible(box);
  const ended = useEndedCells(store);
  const [shown, show] = React.useState<Shown | null>(null);
  const at = isVisible ? ended : null;
  const { found, failure, isAsked, again } = useAnswer(() => store.call('variables', {}), [store, at], at !== null);
  return (
    <div ref={box} className="jxl-inspector">
      <Variables {...{ variables: found, failure, isAsked, again, shown, show, trans }} />
      {shown ? (
        <Detail key={JSON.stringify(shown)} {...{ store, shown, at, trans }} />
      ) : (
        found !== null &&
        found.length > 0 && (
          <p className="jxl-empty jxl-detail">{trans.__('Choose a variable to see which device holds which part.')}</p>
        )
      )}
    </div>
  );
}

/** How many cells have ended: another number where one has. */
function useEndedCells(store: Store): number {
  const count = () => [...store.cells.values()].reduce((n, { ended, seq }) => n + (ended === null ? 0 : seq), 0);
  return React.useSyncExternalStore(store.listen, count);
}

/** The document of an array, or of all meshes, or of the memory. */
function documentOf(store: Store, shown: Shown): Promise<Document> {
  return shown.kind === 'variable'
    ? (store.call('ask', { name: shown.name, question: { op: 'look' } }) as Promise<Document>)
    : store.call(shown.kind, {});
}

function Detail({ store, shown, at, trans }: IArrays & { shown: Shown; at: number | null }): JSX.Element {
  const name = shown.kind === 'variable' ? shown.name : null;
  const { found, failure } = useAnswer(() => documentOf(store, shown), [store, at], at !== null);
  const ask = React.useMemo(
    (): Ask | null => (name === null ? null : question => store.call('ask', { name, question })),
    [store, name]
  );
  return (
    <section className="jxl-detail" aria-label={trans.__('Selected variable')} aria-busy={!found && !failure}>
      {failure ? (
        <Failure text={failure} />
      ) : found ? (
        <Drawing document={found} ask={ask} />
      ) : (
        <Busy text={trans.__('Asking the ranks …')} />
      )}
    </section>
  );
}

/** static/shardview draws it; React keeps its hands off. */
function Drawing(props: { document: Document; ask: Ask | null }): JSX.Element {
  const box = React.useRef<HTMLDivElement>(null);
  React.useLayoutEffect(() => {
    const life = new AbortController();
    draw(box.current!, props.document, { ask: props.ask, signal: life.signal });
    return () => life.abort();
  }, [props.document, props.ask]);
  return <div ref={box} />;
}

type Column = 'name' | 'type' | 'dtype' | 'sharding' | 'nbytes' | 'nbytes_per_device';

interface IOrder {
  by: Column;
  down: boolean;
}

/** Those whose name, type, dtype or sharding has the words in it, in an order. */
function arrange(
  variables: readonly IVariable[],
  query: string,
  { by, down }: IOrder
): IVariable[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = variables.filter(one => {
    const text = [one.name, one.type, shapeText(one), one.dtype, one.sharding].join(' ').toLowerCase();
    return words.every(word => text.includes(word));
  });
  const compare = (a: IVariable, b: IVariable) => {
    const [x, y] = [a[by], b[by]];
    return typeof x === 'number' && typeof y === 'number'
      ? x - y
      : String(x).localeCompare(String(y), 'en', { numeric: true });
  };
  return found.sort((a, b) => (down ? compare(b, a) : compare(a, b)));
}

const shapeText = (one: IVariable): string =>
  one.shape === null ? one.type : `(${one.shape.join(', ')}${one.shape.length === 1 ? ',' : ''})`;

interface IVariables {
  /** Null before the first answer. */
  variables: readonly IVariable[] | null;
  failure: string;
  isAsked: boolean;
  again: () => void;
  shown: Shown | null;
  show: (shown: Shown) => void;
  trans: Trans;
}

function Variables(props: IVariables): JSX.Element {
  const { variables, shown, show, trans } = props;
  const [query, setQuery] = React.useState('');
  const [order, setOrder] = React.useState<IOrder>({ by: 'name', down: false });
  const rows = React.useMemo(
    () => arrange(variables ?? [], query, order),
    [variables, query, order]
  );
  const heads: [Column, string, string][] = [
    ['name', trans.__('name'), ''],
    ['type', trans.__('shape'), ''],
    ['dtype', trans.__('dtype'), ''],
    ['sharding', trans.__('sharding'), ''],
    ['nbytes', trans.__('bytes'), trans.__('of the whole array')],
    ['nbytes_per_device', trans.__('per device'), trans.__('the most that one device holds of it')]
  ];
  // Big ones first is what one wants of numbers.
  const sort = (by: Column) =>
    setOrder(now => ({ by, down: now.by === by ? !now.down : by.startsWith('nbytes') }));
  return (
    <section className="jxl-variables" aria-label={trans.__('Variables of the cluster')}>
      <div className="jxl-line">
        <input
          type="search"
          aria-label={trans.__('Filter variables')}
          placeholder={trans.__('Filter')}
          value={query}
          onChange={event => setQuery(event.target.value)}
        />
        <span className="jxl-dim" role="status">
          {variables &&
            trans.__(
              '%1 of %2',
              rows.length,
              trans._n('%1 variable', '%1 variables', variables.length)
            )}
        </span>
        <span className="jxl-actions">
          <Button
            label={trans.__('Mesh')}
            title={trans.__('The device meshes of variables and shardings')}
            onClick={() => show({ kind: 'mesh' })}
          />
          <Button
            label={trans.__('Memory')}
            title={trans.__('What each device holds')}
            onClick={() => show({ kind: 'memory' })}
          />
          <Button
            label={trans.__('Refresh')}
            title={trans.__('Ask the ranks again')}
            disabled={props.isAsked}
            onClick={props.again}
          />
        </span>
      </div>
      {props.failure && <Failure text={props.failure} />}
      {!variables && !props.failure && <Busy text={trans.__('Asking the ranks …')} />}
      {variables && !variables.length && (
        <p className="jxl-empty">{trans.__('The ranks have no variables that hold arrays.')}</p>
      )}
      {variables && variables.length > 0 && (
        <Roving stops=".jxl-variable" className="jxl-scroll">
          {/* The roles keep it a table where its rows are laid out as lines. */}
          <table role="table">
            <thead role="rowgroup">
              <tr role="row">
                {heads.map(([by, label, title]) => (
                  <th
                    key={by}
                    scope="col"
                    role="columnheader"
                    className={`jxl-of-${by}`}
                    aria-sort={order.by === by ? (order.down ? 'descending' : 'ascending') : undefined}
                  >
                    <button type="button" title={title || undefined} onClick={() => sort(by)}>
                      {label}
                      <span aria-hidden="true">{order.by === by ? (order.down ? '▾' : '▴') : ''}</span>
                    </button>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody role="rowgroup">
              {rows.map(one => (
                <Row
                  key={one.name}
                  one={one}
                  selected={shown?.kind === 'variable' && shown.name === one.name}
                  onShow={show}
                />
              ))}
            </tbody>
          </table>
        </Roving>
      )}
    </section>
  );
}

const Row = React.memo(function Row(props: {
  one: IVariable;
  selected: boolean;
  onShow: (shown: Shown) => void;
}): JSX.Element {
  const { one, selected, onShow } = props;
  const show = () => onShow({ kind: 'variable', name: one.name });
  return (
    <tr role="row" data-variable={one.name} className={selected ? 'jxl-mod-selected' : undefined} onClick={show}>
      <th scope="row" role="rowheader" className="jxl-of-name">
        <button
          type="button"
          className="jxl-variable"
          tabIndex={-1}
          aria-pressed={selected}
          onClick={event => {
            event.stopPropagation();
            show();
          }}
        >
          <Middle text={one.name} />
        </button>
      </th>
      <td role="cell" className="jxl-of-type">
        {shapeText(one)}
      </td>
      <td role="cell" className="jxl-of-dtype">
        {one.dtype}
      </td>
      <td role="cell" className="jxl-of-sharding">
        {one.sharding && <Middle text={one.sharding} />}
      </td>
      <td role="cell" className="jxl-of-nbytes">
        {bytes(one.nbytes)}
      </td>
      <td role="cell" className="jxl-of-nbytes_per_device">
        {bytes(one.nbytes_per_device)}
      </td>
    </tr>
  );
});
