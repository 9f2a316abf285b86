/** One panel with tabs: the report, stacks, logs, and, where they are given, arrays. */

import * as React from 'react';
import type { Execute, IShow, Tab } from '../actions';
import type { Store } from '../store';
import type { Trans } from './labels';
import { Logs } from './logs';
import { Roving, useKnown } from './parts';
import { ReportView } from './report';
import { Stacks } from './stacks';

interface IDetails {
  store: Store;
  shown: IShow;
  trans: Trans;
  execute: Execute;
  onShow: (shown: IShow) => void;
  /** Show a cell of the notebook; null where that is not on this page. */
  onCell: ((cell_id: string) => void) | null;
  /** What the tab of arrays has; null: there is no such tab. */
  arrays: JSX.Element | null;
}

export function Details(props: IDetails): JSX.Element {
  const { store, shown, trans, execute, onShow } = props;
  const known = useKnown(store);
  const id = React.useId();
  const tabs: [Tab, string][] = [
    ['report', trans.__('Report')],
    ['stacks', trans.__('Stacks')],
    ['logs', trans.__('Logs')],
    ['arrays', trans.__('Arrays')]
  ];
  const offered = tabs.filter(([tab]) => tab !== 'arrays' || props.arrays);
  return (
    <div className="jxl-details" data-tab={shown.tab}>
      <Roving stops="[role=tab]" className="jxl-tabs" role="tablist" aria-label={trans.__('Details')}>
        {offered.map(([tab, label]) => (
          <button
            key={tab}
            type="button"
            role="tab"
            id={`${id}-${tab}`}
            aria-selected={tab === shown.tab}
            aria-controls={`${id}-panel`}
            onClick={() => onShow({ tab, rank: null })}
          >
            {label}
          </button>
        ))}
      </Roving>
      <div className="jxl-tab" role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-${shown.tab}`}>
        {shown.tab === 'report' && (
          <ReportView report={known?.state?.report ?? null} trans={trans} execute={execute} onShow={props.onCell} />
        )}
        {shown.tab === 'stacks' && <Stacks store={store} trans={trans} />}
        {shown.tab === 'logs' && (
          <Logs store={store} rank={shown.rank} trans={trans} onRank={rank => onShow({ tab: 'logs', rank })} />
        )}
        {shown.tab === 'arrays' && props.arrays}
      </div>
    </div>
  );
}
