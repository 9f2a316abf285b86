/** The sidebar in a cell's output, with what JupyterLab has dialogs and panels for. */

import * as React from 'react';
import { actionsIn, type ActionId, type Args, type Call, type IQuestion, type IShow } from '../actions';
import { Details } from '../widgets/details';
import type { Trans } from '../widgets/labels';
import { Button, Failure, useKnown } from '../widgets/parts';
import { Sidebar } from '../widgets/sidebar';
import { BUSY, type Kernel } from './kernel';

/** How long a kernel may take to answer before it is said that none does. */
const ANSWERS_MS = 1500;
const PROPOSED = 4;

interface IAlone {
  kernel: Kernel;
  trans: Trans;
}

export function Alone({ kernel, trans }: IAlone): JSX.Element {
  const known = useKnown(kernel)!;
  const [question, ask] = React.useState<IQuestion | null>(null);
  const [shown, show] = React.useState<IShow | null>(null);
  const [said, say] = React.useState<{ text: string; failed: boolean } | null>(null);
  const box = React.useRef<HTMLDivElement>(null);
  const [isBare, setBare] = React.useState(false);
  React.useLayoutEffect(() => {
    const around = box.current?.parentElement;
    setBare(!!around && !getComputedStyle(around).getPropertyValue('--jp-layout-color1'));
  }, [known.state === null]);
  const actions = React.useMemo(() => actionsIn(trans), [trans]);

  const call = async ({ op, args }: Call): Promise<void> => {
    say(null);
    ask(null);
    try {
      const isEnd = op === 'interrupt' || op === 'cancel';
      const text = await (isEnd ? kernel.interrupt(op) : kernel.call(op, args));
      say(typeof text === 'string' && text ? { text, failed: false } : null);
    } catch (error) {
      say({ text: (error as Error).message, failed: true });
    }
  };
  const execute = (id: ActionId, args: Args = {}): void => {
    const deed = kernel.state && actions[id].does(kernel.state, args);
    if (deed && 'tab' in deed) {
      show(deed);
    } else if (deed && 'answers' in deed) {
      ask(deed);
    } else if (deed) {
      void call(deed);
    }
  };
  if (!known.state) {
    return <p className="jxl-alone jxl-sidebar jxl-empty">{trans.__('Nothing is known of the cluster.')}</p>;
  }
  return (
    <div ref={box} className={isBare ? 'jxl-alone jxl-mod-bare' : 'jxl-alone'}>
      <Absence kernel={kernel} trans={trans} />
      {/* Nothing can be done where nobody answers: buttons are not shown. */}
      <div className={kernel.isLive ? 'jxl-aloneBody' : 'jxl-aloneBody jxl-mod-still'}>
        <Sidebar
          notebook={trans.__('This notebook')}
          store={kernel}
          trans={trans}
          execute={execute}
          number={PROPOSED}
          onStart={number => void call({ op: 'start', args: { line: `-n ${number}` } })}
          onForm={null}
          onLoad={null}
        />
        {question && (
          <Question question={question} trans={trans} onCall={call} onClose={() => ask(null)} />
        )}
        {said?.failed && <Failure text={said.text} />}
        {said && !said.failed && (
          <p className="jxl-said" role="status">
            {said.text}
          </p>
        )}
        {shown && (
          <section className="jxl-pane" aria-label={trans.__('Details')}>
            <Button label={trans.__('Close')} onClick={() => show(null)} />
            <Details
              {...{ store: kernel, shown, trans, execute }}
              onShow={show}
              onCell={null}
              arrays={null}
            />
          </section>
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
        : trans.__(BUSY)}
    </p>
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
  React.useLayoutEffect(() => box.current?.querySelector('button')?.focus(), [question]);
  return (
    <div className="jxl-alarm" role="alertdialog" aria-label={question.title} ref={box}>
      <p>
        <strong>{question.title}</strong> {question.body}
      </p>
      <div className="jxl-buttons">
        <Button label={trans.__('Cancel')} onClick={onClose} />
        {question.answers.map(({ label, call }) => (
          <Button key={label} look="danger" label={label} onClick={() => void onCall(call)} />
        ))}
      </div>
    </div>
  );
}
