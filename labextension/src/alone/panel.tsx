/** The sidebar in a cell's output, with what JupyterLab has dialogs, menus and panels for. */

import * as React from 'react';
import type { IState } from '../protocol';
import { Ticker } from '../widgets/clock';
import { Logs } from '../widgets/logs';
import { Button, Failure } from '../widgets/parts';
import { ReportView } from '../widgets/report';
import type { IUses } from '../widgets/resources';
import { Sidebar } from '../widgets/sidebar';
import type { Trans } from '../widgets/labels';
import { actionOf, menuOf, type Args, type Call, type IQuestion, type Pane } from './actions';
import type { Kernel } from './kernel';

const LOG_LINES = 500;
const LOGS_EVERY_MS = 2000;
/** How long a kernel may take to answer before it is said that none does. */
const ANSWERS_MS = 1500;
const PROPOSED = 4;

interface IAlone {
  kernel: Kernel;
  trans: Trans;
}

export function Alone({ kernel, trans }: IAlone): JSX.Element {
  const [, draw] = React.useReducer((n: number) => n + 1, 0);
  React.useEffect(() => kernel.listen(draw), [kernel]);
  const [question, ask] = React.useState<IQuestion | null>(null);
  const [menu, openMenu] = React.useState(false);
  const [pane, showPane] = React.useState<{ pane: Pane; rank: number | null } | null>(null);
  const [said, say] = React.useState<{ text: string; failed: boolean } | null>(null);
  const anchor = React.useRef<HTMLElement | null>(null);
  const { state, clockOffset } = kernel.known;
  const box = React.useRef<HTMLDivElement>(null);
  const [isBare, setBare] = React.useState(false);
  React.useLayoutEffect(() => {
    const around = box.current?.parentElement;
    setBare(!!around && !getComputedStyle(around).getPropertyValue('--jp-layout-color1'));
  }, [state === null]);
  const uses = React.useMemo(
    (): IUses => ({ all: () => kernel.known.resources, listen: kernel.listen }),
    [kernel]
  );
  const ticker = React.useMemo(() => new Ticker(() => kernel.known.clockOffset !== null), [kernel]);

  const call = React.useCallback(
    async (wanted: Call): Promise<void> => {
      say(null);
      ask(null);
      try {
        const text = await kernel.call(wanted.op, wanted.args);
        say(typeof text === 'string' && text ? { text, failed: false } : null);
      } catch (error) {
        say({ text: (error as Error).message, failed: true });
      }
    },
    [kernel]
  );
  const execute = React.useCallback(
    (command: string, args: Args = {}): void => {
      openMenu(false);
      const now = kernel.known.state;
      const action = now && actionOf(command, args, now, trans);
      if (!action) {
        return;
      }
      if ('call' in action) {
        void call(action.call);
      } else if ('question' in action) {
        ask(action.question);
      } else {
        showPane(action);
      }
    },
    [kernel, trans, call]
  );
  if (!state) {
    return <p className="jxl-alone jxl-sidebar jxl-empty">{trans.__('Nothing is known of the cluster.')}</p>;
  }
  const closeMenu = (): void => {
    openMenu(false);
    anchor.current?.focus();
  };
  return (
    <div ref={box} className={isBare ? 'jxl-alone jxl-mod-bare' : 'jxl-alone'}>
      <Absence kernel={kernel} trans={trans} />
      {/* Nothing can be done where nobody answers: buttons are not shown. */}
      <div className={kernel.isLive ? 'jxl-aloneBody' : 'jxl-aloneBody jxl-mod-still'}>
        <Sidebar
          notebook={trans.__('This notebook')}
          state={state}
          clockOffset={clockOffset ?? state.now - Date.now()}
          ticker={ticker}
          trans={trans}
          execute={execute}
          uses={uses}
          openMenu={button => {
            anchor.current = button;
            openMenu(!menu);
          }}
          number={PROPOSED}
          onStart={number => void call({ op: 'start', args: { line: `-n ${number}` } })}
          hasForm={false}
          load={null}
        />
        {menu && (
          <Menu
            state={state}
            trans={trans}
            anchor={anchor.current!}
            execute={execute}
            onClose={closeMenu}
          />
        )}
        {question && (
          <Question question={question} trans={trans} onCall={call} onClose={() => ask(null)} />
        )}
        {said?.failed && <Failure text={said.text} />}
        {said && !said.failed && (
          <p className="jxl-said" role="status">
            {said.text}
          </p>
        )}
        {pane && (
          <PaneView
            {...pane}
            key={pane.pane}
            {...{ kernel, state, trans, execute }}
            onRank={rank => showPane({ pane: 'logs', rank })}
            onClose={() => showPane(null)}
          />
        )}
      </div>
    </div>
  );
}

/** Why the buttons do nothing, where that is so. */
function Absence({ kernel, trans }: IAlone): JSX.Element | null {
  const [isLate, late] = React.useState(false);
  React.useEffect(() => {
    const timer = setTimeout(() => late(true), ANSWERS_MS);
    return () => clearTimeout(timer);
  }, [kernel]);
  const { state, clockOffset } = kernel.known;
  if (kernel.isLive || !isLate || !state) {
    return null;
  }
  return (
    <p className="jxl-absence" role="status">
      {clockOffset === null
        ? trans.__('As it was on %1. No kernel answers.', new Date(state.now).toLocaleString())
        : trans.__(
            'The kernel runs a cell, and hears nothing else until that ends. Its stop button interrupts all ranks.'
          )}
    </p>
  );
}

interface IMenu {
  state: IState;
  trans: Trans;
  /** What has opened it. */
  anchor: HTMLElement;
  execute: (command: string) => void;
  onClose: () => void;
}

function Menu({ state, trans, anchor, execute, onClose }: IMenu): JSX.Element {
  const box = React.useRef<HTMLDivElement>(null);
  const items = () => [...box.current!.querySelectorAll('button')];
  React.useLayoutEffect(() => {
    const { style, offsetParent, offsetWidth } = box.current!;
    const [button, around] = [anchor, offsetParent!].map(one => one.getBoundingClientRect());
    const room = around.width - offsetWidth;
    style.left = `${Math.max(0, Math.min(button.left - around.left, room))}px`;
    style.top = `${button.bottom - around.top}px`;
    items()[0]?.focus();
  }, []);
  const onKeyDown = (event: React.KeyboardEvent) => {
    const all = items();
    const at = all.indexOf(event.target as HTMLButtonElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === 'Escape') {
      onClose();
    } else if (to !== undefined) {
      all[(to + all.length) % all.length].focus();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation(); // the notebook has keys of its own
  };
  return (
    <div ref={box} className="jxl-menuHere" role="menu" aria-label={trans.__('More actions')} onKeyDown={onKeyDown}>
      {menuOf(state, trans).map(([command, label]) => (
        <button key={command} type="button" role="menuitem" className="jxl-button" onClick={() => execute(command)}>
          {label}
        </button>
      ))}
    </div>
  );
}

interface IQuestionView {
  question: IQuestion;
  trans: Trans;
  onCall: (call: Call) => Promise<void>;
  onClose: () => void;
}

/** A page of VS Code has no dialogs. */
function Question({ question, trans, onCall, onClose }: IQuestionView): JSX.Element {
  const box = React.useRef<HTMLDivElement>(null);
  React.useEffect(() => box.current?.querySelector('button')?.focus(), [question]);
  return (
    <div className="jxl-alarm" role="alertdialog" aria-label={question.title} ref={box}>
      <p>
        <strong>{question.title}</strong> {question.body}
      </p>
      <div className="jxl-buttons">
        <Button label={trans.__('Cancel')} onClick={onClose} />
        {question.answers.map(({ label, call }) => (
          <Button key={label} danger label={label} onClick={() => void onCall(call)} />
        ))}
      </div>
    </div>
  );
}

interface IPane extends IAlone {
  pane: Pane;
  rank: number | null;
  state: IState;
  execute: (command: string) => void;
  onRank: (rank: number | null) => void;
  onClose: () => void;
}

/** What JupyterLab shows in a panel of its own. */
function PaneView(props: IPane): JSX.Element {
  const { pane, kernel, state, trans } = props;
  const titles: Record<Pane, string> = {
    report: trans.__('Report'),
    stacks: trans.__('Stacks'),
    logs: trans.__('Logs')
  };
  return (
    <section className="jxl-pane" aria-label={titles[pane]}>
      <h2>
        {titles[pane]}
        <Button label={trans.__('close')} onClick={props.onClose} />
      </h2>
      {pane === 'report' && (
        <ReportView report={state.report} trans={trans} execute={props.execute} onShow={null} />
      )}
      {pane === 'stacks' && (
        <Asked ask={() => kernel.call('stacks', {})}>
          {(text: string) => <pre className="jxl-text">{text}</pre>}
        </Asked>
      )}
      {pane === 'logs' && <FollowedLogs {...props} />}
    </section>
  );
}

/** What is asked for once. */
function Asked<T>(props: { ask: () => Promise<T>; children: (found: T) => JSX.Element }): JSX.Element | null {
  const [found, set] = React.useState<{ value: T } | null>(null);
  const [failure, fail] = React.useState('');
  React.useEffect(() => {
    props.ask().then(
      value => set({ value }),
      error => fail((error as Error).message)
    );
  }, []);
  return failure ? <Failure text={failure} /> : found && props.children(found.value);
}

function FollowedLogs({ kernel, rank, state, trans, onRank }: IPane): JSX.Element {
  const [text, setText] = React.useState('');
  const [failure, fail] = React.useState('');
  const [follow, setFollow] = React.useState(false);
  React.useEffect(() => {
    let isOver = false;
    const load = async () => {
      try {
        const found = await kernel.call('logs', { rank, lines: LOG_LINES });
        if (!isOver) {
          setText(found);
          fail('');
        }
      } catch (error) {
        fail((error as Error).message);
      }
    };
    void load();
    const timer = follow ? setInterval(() => void load(), LOGS_EVERY_MS) : undefined;
    return () => {
      isOver = true;
      clearInterval(timer);
    };
  }, [kernel, rank, follow]);
  const ranks = state.ranks.map(one => one.rank);
  return <Logs {...{ rank, ranks, text, failure, follow, trans, onRank }} onFollow={setFollow} />;
}
