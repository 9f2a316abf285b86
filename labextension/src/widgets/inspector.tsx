/** The cluster's variables as a table, and the interactive view of the selected one below it. */

import * as React from 'react';
import { bytes, draw, type Ask } from '../draw/shardview';
import type { Document, IVariable } from '../protocol';
import { Middle } from './middle';
import { Busy, Button, Failure, Roving } from './parts';
import type { Trans } from './labels';

/** What is drawn below the table: a variable's document, or that of mesh or memory. */
export type Shown = { kind: 'variable'; name: string } | { kind: 'mesh' } | { kind: 'memory' };

interface IInspector {
  /** Null before the first answer. */
  variables: readonly IVariable[] | null;
  /** Instead of variables: why there are none. */
  failure: string;
  /** Whether an answer is awaited. */
  busy: boolean;
  shown: Shown | null;
  /** The document of `shown`; null before it is there. */
  document: Document | null;
  documentFailure: string;
  ask: Ask | null;
  trans: Trans;
  onShow: (shown: Shown) => void;
  onRefresh: () => void;
}

export function Inspector(props: IInspector): JSX.Element {
  const { variables, shown, trans } = props;
  const waits = !!shown && !props.document && !props.documentFailure;
  return (
    <div className="jxl-inspector">
      <Variables {...props} />
      <section className="jxl-detail" aria-label={trans.__('Selected variable')} aria-busy={waits}>
        {props.documentFailure ? (
          <Failure text={props.documentFailure} />
        ) : waits ? (
          <Busy text={trans.__('The ranks are asked …')} />
        ) : props.document ? (
          <Drawing document={props.document} ask={props.ask} />
        ) : (
          variables && variables.length > 0 && (
            <p className="jxl-empty">
              {trans.__('Choose a variable to see which device holds which part of it.')}
            </p>
          )
        )}
      </section>
    </div>
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

function Variables(props: IInspector): JSX.Element {
  const { variables, shown, trans } = props;
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
            onClick={() => props.onShow({ kind: 'mesh' })}
          />
          <Button
            label={trans.__('Memory')}
            title={trans.__('What each device holds')}
            onClick={() => props.onShow({ kind: 'memory' })}
          />
          <Button
            label={trans.__('Refresh')}
            title={trans.__('Ask the ranks again')}
            disabled={props.busy}
            onClick={props.onRefresh}
          />
        </span>
      </div>
      {props.failure && <Failure text={props.failure} />}
      {!variables && !props.failure && <Busy text={trans.__('The ranks are asked …')} />}
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
                  onShow={props.onShow}
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
