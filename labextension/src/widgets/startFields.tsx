/** The fields of the form that starts a cluster, and the line that it will run. */

import * as React from 'react';
import {
  LAUNCHERS,
  PLATFORMS,
  fieldOf,
  hostsHaveRanks,
  ownFields,
  startLine,
  withLauncher,
  type IFormField,
  type IStartOptions
} from './startOptions';
import type { Trans } from './labels';

interface IStartFields {
  initial: IStartOptions;
  trans: Trans;
  onChange: (options: IStartOptions) => void;
}

/** Fields as wide as the form. */
const LONG: string[] = ['launcher', 'env', 'more', 'hosts', 'image'];

/** What the browser lets pass, by a field's kind. */
const PATTERNS: { [kind: string]: string } = {
  count: '\\s*[1-9][0-9]{0,5}\\s*',
  devices: '\\s*(all|[1-9][0-9]{0,5})\\s*',
  seconds: '\\s*[0-9.]*[1-9][0-9.]*[smhd]?\\s*'
};

export function StartFields(props: IStartFields): JSX.Element {
  const { trans } = props;
  const [options, setOptions] = React.useState(props.initial);
  const id = React.useId();

  const change = (part: Partial<IStartOptions>) => {
    const { launcher } = part;
    const next = launcher === undefined ? { ...options, ...part } : withLauncher(options, launcher);
    setOptions(next);
    props.onChange(next);
  };
  const onChange = (event: React.ChangeEvent<HTMLInputElement>) =>
    change({ [event.target.name]: event.target.value });

  const field = (key: string, label: string, help: string, control: (own: object) => JSX.Element) => (
    <div key={key} className={LONG.includes(key) ? 'jxl-field' : 'jxl-field jxl-mod-short'}>
      <label htmlFor={`${id}-${key}`}>{label}</label>
      {control({
        id: `${id}-${key}`,
        name: key,
        value: options[key],
        'aria-describedby': `${id}-${key}-help`,
        onChange
      })}
      <span id={`${id}-${key}-help`} className="jxl-help">
        {help}
      </span>
    </div>
  );
  const text = (placeholder: string, about: React.InputHTMLAttributes<HTMLInputElement> = {}) =>
    function Input(own: object) {
      return (
        <input type="text" autoComplete="off" spellCheck={false} placeholder={placeholder} {...about} {...own} />
      );
    };
  const select = (names: readonly string[], shown: (name: string) => string) =>
    function Select(own: object) {
      return (
        <select {...own}>
          {names.map(name => (
            <option key={name} value={name}>
              {shown(name)}
            </option>
          ))}
        </select>
      );
    };
  /** A field as the kernel's package declares it. */
  const declared = ({ key, label, help, empty, kind }: IFormField, control?: (own: object) => JSX.Element) => {
    const pattern = PATTERNS[kind];
    const about = {
      pattern,
      title: pattern ? trans.__(help) : undefined, // the browser says it where the pattern doesn't fit
      autoFocus: key === 'numProcesses',
      required: key === 'hosts'
    };
    return field(key, trans.__(label), trans.__(help), control ?? text(trans.__(empty), about));
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
  const where =
    options.launcher === 'auto'
      ? trans.__('A job of Slurm, PBS, LSF or Grid Engine, or a TPU slice; else this machine')
      : '';
  const env = fieldOf('env');
  return (
    <form className="jxl-form" onSubmit={event => event.preventDefault()}>
      {field('launcher', trans.__(fieldOf('launcher').label), where, select(LAUNCHERS, name => launchers[name]))}
      {options.launcher === 'ipp' &&
        field(
          'ippName',
          trans.__('Launcher'),
          trans.__('As ipyparallel calls it'),
          text('pbs', { required: true, pattern: '[\\w.\\-]+' })
        )}
      {ownFields(options.launcher).map(own => declared(own))}
      {!hostsHaveRanks(options) && declared(fieldOf('numProcesses'))}
      {declared(fieldOf('devicesPerProcess'))}
      {declared(
        fieldOf('platform'),
        select(['', ...PLATFORMS], name => name || trans.__('automatic'))
      )}
      {declared(fieldOf('name'))}
      {declared(fieldOf('timeout'))}
      {field('env', trans.__(env.label), '', own => (
        <textarea rows={2} spellCheck={false} placeholder={trans.__(env.empty)} {...own} />
      ))}
      {field('more', trans.__('More options'), '', text('--heartbeat-timeout-seconds 300'))}
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
        <span id={`${id}-line`}>{trans.__('Will run')}</span>
        <pre className="jxl-command" aria-labelledby={`${id}-line`} role="group">
          {`%jaxcluster start ${startLine(options)}`.trimEnd()}
        </pre>
      </div>
    </form>
  );
}
