/** The fields of the form that starts a cluster, and the line that it will run. */

import * as React from 'react';
import {
  LAUNCHERS,
  PLATFORMS,
  checkOptions,
  fieldOf,
  hostsHaveRanks,
  ownFields,
  startLine,
  withLauncher,
  type IStartOptions
} from './startOptions';
import type { Trans } from './labels';

interface IStartFields {
  initial: IStartOptions;
  trans: Trans;
  onChange: (options: IStartOptions) => void;
  /** Whether to say of each field what is wrong with it; else of those that were typed in. */
  isChecked?: boolean;
}

/** Fields as wide as the form. */
const LONG: string[] = ['launcher', 'env', 'more', 'hosts', 'image'];

export function StartFields(props: IStartFields): JSX.Element {
  const { trans } = props;
  const [options, setOptions] = React.useState(props.initial);
  const [typed, setTyped] = React.useState<readonly string[]>([]);
  const found = checkOptions(options, trans);
  const wrong = Object.fromEntries(
    Object.entries(found).filter(([key]) => props.isChecked || typed.includes(key))
  );
  const id = React.useId();

  const change = (part: Partial<IStartOptions>) => {
    const { launcher } = part;
    const next = launcher === undefined ? { ...options, ...part } : withLauncher(options, launcher);
    setTyped([...typed, ...Object.keys(part)]);
    setOptions(next);
    props.onChange(next);
  };

  /** What every field has: its name, its value, what is wrong with it. */
  const field = (key: string, label: string, help: string, control: (own: object) => JSX.Element) => {
    const own = {
      id: `${id}-${key}`,
      name: key,
      value: options[key],
      'aria-invalid': wrong[key] ? true : undefined,
      'aria-describedby': `${id}-${key}-help`,
      onChange: (event: React.ChangeEvent<HTMLInputElement>) =>
        change({ [key]: event.target.value })
    };
    return (
      <div className={LONG.includes(key) ? 'jxl-field' : 'jxl-field jxl-mod-short'}>
        <label htmlFor={own.id}>{label}</label>
        {control(own)}
        <span
          id={`${id}-${key}-help`}
          className={wrong[key] ? 'jxl-help jxl-mod-wrong' : 'jxl-help'}
          aria-live="polite"
        >
          {wrong[key] ?? help}
        </span>
      </div>
    );
  };
  const text = (placeholder: string, numeric = false, first = false) =>
    function Input(own: object) {
      return (
        <input
          type="text"
          autoFocus={first}
          autoComplete="off"
          spellCheck={false}
          inputMode={numeric ? 'numeric' : undefined}
          placeholder={placeholder}
          {...own}
        />
      );
    };

  const launchers: { [name: string]: string } = {
    '': trans.__('this machine'),
    auto: trans.__('the job that this notebook runs in'),
    ssh: trans.__('hosts, by ssh'),
    slurm: trans.__('Slurm'),
    mpi: trans.__('hosts, by mpiexec'),
    tpu: trans.__('a TPU slice'),
    kubernetes: trans.__('Kubernetes'),
    ipp: trans.__('ipyparallel’s launchers')
  };
  /** A field as the kernel's package declares it. */
  const declared = (key: string, control?: (own: object) => JSX.Element, help?: string) => {
    const { label, help: told, empty, kind } = fieldOf(key);
    const input = text(trans.__(empty), ['count', 'devices', 'seconds'].includes(kind), key === 'numProcesses');
    return field(key, trans.__(label), help ?? trans.__(told), control ?? input);
  };
  const where =
    options.launcher === 'auto'
      ? trans.__('Slurm’s, a batch system’s, mpiexec’s or a TPU slice; else this machine')
      : '';

  return (
    <div className="jxl-form">
      {declared(
        'launcher',
        own => (
          <select {...own}>
            {LAUNCHERS.map(name => (
              <option key={name} value={name}>
                {launchers[name]}
              </option>
            ))}
          </select>
        ),
        where
      )}
      {options.launcher === 'ipp' &&
        field('ippName', trans.__('Launcher'), trans.__('As ipyparallel calls it'), text('pbs'))}
      {ownFields(options.launcher).map(({ key }) => (
        <React.Fragment key={key}>{declared(key)}</React.Fragment>
      ))}
      {!hostsHaveRanks(options) && declared('numProcesses')}
      {declared('devicesPerProcess')}
      {declared('platform', own => (
        <select {...own}>
          <option value="">{trans.__('automatic')}</option>
          {PLATFORMS.map(name => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      ))}
      {declared('name')}
      {declared('timeout')}
      {declared(
        'env',
        own => <textarea rows={2} spellCheck={false} placeholder={trans.__(fieldOf('env').empty)} {...own} />,
        ''
      )}
      {field(
        'more',
        trans.__('More options'),
        '',
        text('--heartbeat-timeout-seconds 300')
      )}
      <div className="jxl-field">
        <label className="jxl-check">
          <input
            type="checkbox"
            name="detach"
            checked={options.detach}
            onChange={event => change({ detach: event.target.checked })}
          />
          {trans.__(fieldOf('detach').label)}
        </label>
      </div>
      <div className="jxl-field">
        <label className="jxl-check">
          <input
            type="checkbox"
            name="inCell"
            checked={options.inCell}
            onChange={event => change({ inCell: event.target.checked })}
          />
          {trans.__('Write the line into a cell of the notebook')}
        </label>
      </div>
      <div className="jxl-field">
        <span id={`${id}-line`}>{trans.__('Will run')}</span>
        <pre className="jxl-command" aria-labelledby={`${id}-line`} role="group">
          {`%jaxcluster start ${startLine(options)}`.trimEnd()}
        </pre>
      </div>
    </div>
  );
}
